"""Points at which a process is killed: once by a file, always for poison, else never."""

import os
import signal
import subprocess
import sys

import pytest


def end_of(code, folder):
    """How a process ends that runs the code; folder: of kill points, None: it is not set."""
    environment = {k: v for k, v in os.environ.items() if k != "LOCKSTEP_KILL_POINTS"}
    if folder is not None:
        environment["LOCKSTEP_KILL_POINTS"] = str(folder)
    whole = f"from workers.kill_point import reach; {code}"
    return subprocess.run([sys.executable, "-c", whole], env=environment).returncode


def test_who_reaches_a_point_first_is_killed_and_nobody_after(tmp_path):
    (tmp_path / "before claim").touch()
    assert end_of("reach('after claim')", tmp_path) == 0
    assert end_of("reach('before claim')", tmp_path) == -signal.SIGKILL
    assert end_of("reach('before claim')", tmp_path) == 0


def test_poison_kills_everybody_who_takes_it_up(tmp_path):
    (tmp_path / "start of r1").touch()
    assert end_of("reach('start', 'r2')", tmp_path) == 0
    for _ in range(2):
        assert end_of("reach('start', 'r1')", tmp_path) == -signal.SIGKILL


@pytest.mark.parametrize("folder", [None, "nowhere"])
def test_without_a_folder_nothing_happens(folder):
    assert end_of("reach('before claim', 'r1')", folder) == 0
