"""What stands behind `make start`: a ready line, a curl that works, an end without leftovers."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import psutil
import pytest

from tests.node.running_node import is_gone, wait_for

ROOT = Path(__file__).parents[2]
PATIENCE_S = 120


@pytest.fixture
def home(tmp_path, model_home):
    (tmp_path / "models").symlink_to(model_home / "models")
    return tmp_path


@pytest.fixture
def start(home, free_port):
    """Runs it until its ready line; gives the process, all of its children, and the curl line."""
    ports = {"LOCKSTEP_PORT": str(free_port()), "LOCKSTEP_STORE_PORT": str(free_port())}
    environment = {**os.environ, "LOCKSTEP_HOME": str(home), "LOCKSTEP_KV_MIB": "600", **ports}
    begun = []

    def run() -> tuple["subprocess.Popen[str]", list[psutil.Process], str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "ingest.command.start"], cwd=ROOT, env=environment,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip
        begun.append(process)
        said = []
        for line in process.stdout:
            said.append(line)
            if line.startswith("curl "):
                return process, psutil.Process(process.pid).children(recursive=True), line
        raise AssertionError(f"not ready: {''.join(said)}")

    yield run
    for process in begun:
        process.kill()  # honcho gets SIGTERM then, and the keepers stop
        process.wait()
        process.stdout.close()


def all_gone(processes: list[psutil.Process]) -> bool:
    return all(map(is_gone, processes))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_curl_line_works_and_the_end_is_clean(start, number):
    process, children, curl = start()
    words = shlex.split(curl)
    url, body = words[1], words[words.index("-d") + 1]
    answer = httpx.post(url, json={**json.loads(body), "max_tokens": 3}, timeout=PATIENCE_S)
    assert answer.json()["choices"][0]["message"]["content"]
    process.send_signal(number)
    said, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, said
    assert "Lockstep has stopped." in said and "Lockstep is ready" not in said
    assert not re.search("did not stop in time|Traceback", said)
    wait_for(lambda: all_gone(children), "all gone")


def test_ctrl_c_reaches_honcho_once(start):
    """A terminal sends it to the whole group, and two signals at once broke honcho."""
    process, children, _ = start()
    os.killpg(process.pid, signal.SIGINT)
    said, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, said
    assert said.count(" received\n") == 1, said
    wait_for(lambda: all_gone(children), "all gone")


def test_a_killed_start_leaves_nothing_behind(start):
    process, children, _ = start()
    assert len(children) > 12
    process.kill()
    process.wait()
    wait_for(lambda: all_gone(children), "all gone")


def test_it_stops_although_nobody_reads_its_output_any_more(start):
    """`make start | tee log`: Ctrl-C ends tee first."""
    process, children, _ = start()
    process.stdout.close()
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE_S) == 0
    wait_for(lambda: all_gone(children), "all gone")


def test_a_second_node_on_the_same_home_is_refused(start, home):
    start()
    second = subprocess.run(
        [sys.executable, "-m", "ingest.command.start"], cwd=ROOT, text=True, timeout=PATIENCE_S,
        env={**os.environ, "LOCKSTEP_HOME": str(home)}, capture_output=True,
    )  # fmt: skip
    assert second.returncode == 1
    assert "already runs" in second.stderr and len(second.stderr.splitlines()) == 1
