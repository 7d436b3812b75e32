"""kill -9 of the writer at every operation of a conversation: what reopens is the last commit."""

import os
import signal
from pathlib import Path

import pytest

from tests.kv_tier.conversation import TURNS, check, talk
from tests.kv_tier.faulty_files import FaultyFiles, dies_after, dies_before


def num_operations(folder: Path) -> int:
    files = FaultyFiles()
    talk(folder / "counted", files, lambda what, number: None)
    return files.count


def talk_until_killed(root: Path, files: FaultyFiles) -> dict[str, int]:
    """A child process talks; what it told before it was killed."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        try:
            talk(root, files, lambda what, number: _tell(writing, what, number))
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as told:
        lines = [line.split() for line in told]
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    return {"fence": 0, "generation": 0} | {what: int(number) for what, number in lines}


def _tell(fd: int, what: str, number: int) -> None:
    os.write(fd, f"{what} {number}\n".encode())


@pytest.mark.parametrize("dies", [dies_before, dies_after])
def test_what_reopens_after_kill_9_is_the_last_commit(scratch, dies):
    operations = num_operations(scratch)
    assert operations > 100
    for at in range(1, operations + 1):
        root = scratch / str(at)
        told = talk_until_killed(root, FaultyFiles(at, dies))
        check(root, **told)


@pytest.mark.parametrize("dies", [dies_before, dies_after])
def test_a_conversation_goes_on_after_kill_9_and_ends_the_same(scratch, dies):
    for at in range(1, num_operations(scratch) + 1, 5):
        root = scratch / str(at)
        talk_until_killed(root, FaultyFiles(at, dies))
        told = {"fence": 0, "generation": 2 * TURNS}  # when the last commit was whole already
        talk(root, FaultyFiles(), lambda what, number, told=told: told.update({what: number}))
        check(root, **told, may_be_next=False)
        assert told["generation"] == 2 * TURNS
