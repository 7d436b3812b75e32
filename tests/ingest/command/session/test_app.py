"""`lockstep session`: how it explains itself, and what it refuses."""

from dataclasses import replace

import pytest

from ingest.command.main import run
from ingest.command.session.fit import served
from kv_tier.files import DiskError, DiskFull
from tests.ingest.command.session.asked import refused
from tests.ingest.kept_sessions import NODE

NAMES = ["list", "show", "verify", "export", "import", "fork", "pin", "unpin", "rm", "gc"]
NAMES += ["push", "pull"]


@pytest.mark.parametrize("name", NAMES)
def test_every_command_explains_itself(home, capsys, name):
    assert run(["session", name, "--help"]) == 0
    assert "--json" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["../x", "a/b", "", "a--b", "x" * 65, "ü", ".."])
@pytest.mark.parametrize("command", ["show", "verify", "rm", "pin", "unpin"])
def test_a_name_that_is_none_is_refused(home, capsys, command, name):
    code, sentence = refused(capsys, command, "--", name)
    assert code == 2 and "letters" in sentence


@pytest.mark.parametrize("command", ["show", "verify", "rm", "pin", "unpin"])
def test_an_unknown_session_is_said_to_be_unknown(home, capsys, command):
    code, sentence = refused(capsys, command, "nobody")
    assert code == 1 and "'nobody'" in sentence and "session list" in sentence


@pytest.mark.parametrize("error, hint", [(DiskFull, "gc"), (DiskError, "verify")])
def test_a_disk_that_fails_ends_in_a_sentence(home, capsys, monkeypatch, error, hint):
    def fail(config):
        raise error(home, OSError(28, "no space left"))

    monkeypatch.setattr("ingest.command.session.opened.open_tier", fail)
    code, sentence = refused(capsys, "list")
    assert code == 1 and hint in sentence and "Traceback" not in sentence


def test_the_node_is_what_the_served_model_makes(home):
    node = served()
    assert node.model == "tiny" and node.sizes.state_bytes == 0
    assert replace(node, sizes=NODE.sizes) != NODE
