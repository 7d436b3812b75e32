"""`lockstep jobs` lists what the node knows, for people and as JSON; its page's commands run."""

import json
import re
import shlex

import pytest

from ingest.command.main import run
from tests.ingest.conftest import ROOT

PAGE = (ROOT / "docs" / "observing.md").read_text()
BLOCKS = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
LINES = [line for block in BLOCKS for line in block.splitlines()]


def accept(store, *names):
    for name in names:
        store.accept(request_id=name, tenant="default", sla="batch", body=b"\x80")


def test_the_newest_comes_first_and_pages_go_on(store, capfd):
    accept(store, "a", "b", "c")
    assert run(["jobs", "--limit", "2", "--json"]) == 0
    page = json.loads(capfd.readouterr().out)
    assert [job["id"] for job in page["data"]] == ["c", "b"]
    assert run(["jobs", "--after", page["next"], "--json"]) == 0
    assert [job["id"] for job in json.loads(capfd.readouterr().out)["data"]] == ["a"]


def test_a_person_sees_what_each_is(store, capfd):
    accept(store, "waits", "gone")
    store.cancel("gone")
    assert run(["jobs", "--state", "cancelled"]) == 0
    out = capfd.readouterr().out
    assert "gone" in out and "cancelled" in out and "waits" not in out
    assert run(["jobs", "--state", "failed"]) == 0
    assert "no such job" in capfd.readouterr().out


def test_an_id_is_shown_whole_in_a_narrow_terminal(store, capfd, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    accept(store, "req-" + "0" * 20, "short")
    assert run(["jobs"]) == 0
    out = capfd.readouterr().out
    assert "req-" + "0" * 20 in out
    assert max(map(len, out.splitlines())) <= 80


def test_what_is_no_filter_is_wrong_usage(store, capfd):
    assert run(["jobs", "--state", "done"]) == 2
    assert "--state: must be of accepted" in capfd.readouterr().err


@pytest.mark.parametrize("line", LINES)
def test_the_pages_commands_run(store, line):
    program, *arguments = shlex.split(line)
    assert (program, run(arguments)) == ("lockstep", 0)
