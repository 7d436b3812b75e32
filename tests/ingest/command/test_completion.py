"""Tab in a shell: what is offered, and that a real bash asks for it."""

import subprocess
import sys
from pathlib import Path

import pytest

from ingest.command.completion import SCRIPTS, offers
from ingest.command.main import COMMANDS, run

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        (["st"], ["status", "stream"]),
        (["session", "ex"], ["export"]),
        (["session", "gc", "--dr"], ["--dry-run"]),
        (["enqueue", "--dead"], ["--deadline-ms"]),
        (["enqueue", "--he"], ["--help"]),
        (["enqueue", ""], []),
        (["no-such-command", ""], []),
    ],
)
def test_commands_and_options_are_offered(line, offered):
    assert offers(line) == offered


def test_every_command_is_offered():
    assert offers([""]) == sorted(COMMANDS)


def test_a_real_bash_completes(tmp_path):
    lockstep = tmp_path / "lockstep"
    lockstep.write_text(f'#!/bin/sh\nexec {sys.executable} -m ingest.command.main "$@"\n')
    lockstep.chmod(0o755)
    line = "COMP_WORDS=(lockstep session fo) COMP_CWORD=2; _lockstep; echo ${COMPREPLY[@]}"
    script = f'PATH={tmp_path}:$PATH; eval "$(lockstep completion bash)"; {line}'
    done = subprocess.run(["bash", "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("fork\n", "")


def test_each_shell_has_its_script_and_others_are_named(capsys):
    for shell, script in SCRIPTS.items():
        assert run(["completion", shell]) == 0
        assert script in capsys.readouterr().out
    assert run(["completion", "ksh"]) == 2
    assert "SHELL: must be one of bash, zsh, fish" in capsys.readouterr().err
