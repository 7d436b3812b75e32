"""What README and docs have a reader run, run as it stands there against one node.

First the pages whose commands belong together, and what they print; then every other command of
every page (doc_commands.py says how, and which are not run here, and why).
"""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.node.doc_commands import (
    AS_IT_IS_RUN,
    ELSEWHERE,
    NOT_RUN,
    PAGES,
    ROOT,
    blocks,
    console_lines,
    lines_of,
    reason_not_to,
    spans,
)
from tests.node.running_node import wait_for

PATIENCE_S = 120
WITH_TESTS_OF_THEIR_OWN = ("README.md", "docs/classes.md", "docs/sessions.md")  # of their blocks

LOCKSTEP = f'#!/bin/sh\nexec {sys.executable} -m ingest.command.main "$@"\n'
REDIS_CLI = f"""#!{sys.executable}
import sys
from redis import Redis
assert sys.argv[1] == "-p"
print(Redis(port=int(sys.argv[2]), decode_responses=True).execute_command(*sys.argv[3:]))
"""


class Tour:
    """A folder with the node's home as var/, and what the reader has on the path."""

    def __init__(self, node, folder: Path, ports: dict[str, str]) -> None:
        self.node, self.folder, self.ports = node, folder, ports
        self.done: set[str] = set()  # commands that have been run
        (folder / "var").symlink_to(node.home)
        (folder / "bin").mkdir()
        for name, script in (("lockstep", LOCKSTEP), ("redis-cli", REDIS_CLI)):
            (folder / "bin" / name).write_text(script)
            (folder / "bin" / name).chmod(0o755)
        path = f"{folder / 'bin'}:{node.environment['PATH']}"
        self.environment = node.environment | {"PATH": path, "PYTHONUNBUFFERED": "1"}

    def run(self, language: str, text: str) -> str:
        """What the block prints; a block that names a file is saved as that file instead."""
        for written, used in self.ports.items():
            text = text.replace(written, used)
        name = re.match(r"# (\w+\.py)\n", text)
        if name:
            (self.folder / name[1]).write_text(text)
            return ""
        command = ["bash", "-euc", text] if language == "sh" else [sys.executable, "-c", text]
        done = subprocess.run(
            command, cwd=self.folder, env=self.environment,
            capture_output=True, text=True, timeout=PATIENCE_S, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def run_line(self, line: str) -> None:
        """A command of one line, once however many pages name it."""
        command = AS_IT_IS_RUN.get(line, line)
        if command not in self.done and reason_not_to(line) is None:
            self.run("sh", command)
            self.done.add(command)

    def is_open(self) -> bool:
        """Nobody needs an API key, or not any more."""
        return httpx.get(f"{self.node.url}/v1/models").status_code == 200


@pytest.fixture(scope="module")
def tour(make_node, tmp_path_factory, free_port):
    node = make_node(LOCKSTEP_WEBHOOK_ALLOW="127.0.0.0/8", LOCKSTEP_KEY_PREFIX="lockstep")
    port = node.environment["LOCKSTEP_PORT"]
    store_port = node.environment["LOCKSTEP_STORE_PORT"]
    ports = {"8000": port, "6390": store_port, "8099": str(free_port())}
    yield Tour(node, tmp_path_factory.mktemp("tour"), ports)
    node.interrupt()


@pytest.mark.skipif(shutil.which("curl") is None, reason="sessions begin with curl")
def test_sessions_go_as_they_are_written(tour):
    """First of all: its first question is asked on other pages, too, and would be known."""
    asked, managed = [tour.run(*block) for block in blocks("docs/sessions.md", "sh", "python")]
    first, second = [json.loads(line) for line in asked.replace("}{", "}\n{").splitlines()]
    assert first["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    kept = first["usage"]["total_tokens"] - 1
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] >= kept
    assert all(word in managed for word in ("tour", "smollm2-135m", "0 damaged", "pinned"))
    assert '"deleted":true' in managed.replace(" ", "")


@pytest.mark.skipif(shutil.which("curl") is None, reason="the tour begins with curl")
def test_the_tour_goes_as_it_is_written(tour):
    asked, streamed, queued, _, posted, verified = [
        tour.run(*block) for block in blocks("README.md", "sh", "python")
    ]
    assert json.loads(asked)["choices"][0]["message"]["content"]
    assert streamed.strip()
    assert "Paris" in queued and "finished" in queued
    assert posted.splitlines()[-1].startswith("job.finished tour-2 ")
    assert verified


def test_classes_go_as_they_are_written(tour):
    [told] = [tour.run(*block) for block in blocks("docs/classes.md", "sh", "python")]
    assert "promoted" in told and "realtime" in told
    assert all(word in told for word in ("first token in 2.0 s", "end in 60 min", "smollm2-135m"))


@pytest.fixture(scope="module")
def known(tour):
    """The same node, with a job `docs-1` of a session `docs`."""
    made = "--id docs-1 --max-tokens 2 --wait --field 'session_id=\"docs\"'"
    tour.run("sh", f"lockstep enqueue 'Once upon a time' {made}")
    return tour


@pytest.mark.parametrize("page", PAGES)
def test_every_command_of_a_page_goes_as_it_is_written(known, page):
    for language, text in blocks(page, "sh", "python"):
        lines = lines_of(text) if language == "sh" else []
        not_run = [line for line in lines if reason_not_to(line)]
        assert not not_run or not_run == lines, f"{not_run}: in a block of their own"
        if page not in WITH_TESTS_OF_THEIR_OWN and not not_run:
            known.run(language, text)
    for line in (*console_lines(page), *spans(page)):
        known.run_line(line)
    wait_for(known.is_open, "the API keys of the page are gone")


def test_whatever_is_not_run_here_is_on_a_page_and_run_where_it_is_said_to_be():
    named = {line for page in PAGES for line in (*console_lines(page), *spans(page))}
    assert named >= AS_IT_IS_RUN.keys() and named >= ELSEWHERE.keys()
    for path, words in ELSEWHERE.values():
        assert words in (ROOT / path).read_text(), path
    assert all(len(reason.split()) > 1 for reason in NOT_RUN.values())
