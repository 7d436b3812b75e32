"""`lockstep session` in this process: what it answers, and how it refuses."""

import json

from ingest.command.main import run


def asked(capsys, *arguments):
    """Exit code and JSON of a command."""
    capsys.readouterr()
    code = run(["session", *arguments, "--json"])
    return code, json.loads(capsys.readouterr().out)


def refused(capsys, *arguments):
    """Exit code and sentence of a command that does not do it."""
    capsys.readouterr()
    code = run(["session", *arguments])
    return code, capsys.readouterr().err
