"""The keeper, held to its promises with real processes."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from ingest.health.programs import read_program
from workers import keeper
from workers.settings import Settings

ROOT = Path(__file__).parents[2]
WAIT_S = 30  # a hang, not a speed


def until(condition, what: str):
    """The first true value of condition()."""
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.02)
    raise AssertionError(f"never happened: {what}")


def alive(pid: int) -> bool:
    """Whether the process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


class Node:
    """Keepers of one LOCKSTEP_HOME, ended with the test."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.keepers: list[subprocess.Popen[str]] = []

    def command(self, name: str, code: str) -> list[str]:
        program = [sys.executable, "-c", textwrap.dedent(code)]
        return [sys.executable, "-m", "workers.keeper", name, *program]

    def environment(self, **more: str) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if k != "HONCHO_PROCESS_NAME"}
        return kept | {"LOCKSTEP_HOME": str(self.home), "PYTHONPATH": str(ROOT)} | more

    def keep(self, name: str, code: str) -> subprocess.Popen[str]:
        started = subprocess.Popen(
            self.command(name, code), cwd=self.home, env=self.environment(),
            stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.keepers.append(started)
        return started

    def state(self, name: str) -> dict:
        try:
            return json.loads((self.home / "run" / f"{name}.json").read_text())
        except FileNotFoundError:
            return {}

    def until_state(self, name: str, **wanted: object) -> dict:
        def reached():
            state = self.state(name)
            return state if wanted.items() <= state.items() else None

        return until(reached, f"{name} {wanted}, is {self.state(name)}")

    def log(self, text: str) -> list[str]:
        path = self.home / "log"
        return [line for line in path.read_text().split() if text in line] if path.exists() else []

    def until_log(self, text: str) -> list[str]:
        return until(lambda: self.log(text), f"{text} in the log")


@pytest.fixture
def node(tmp_path):
    node = Node(tmp_path)
    yield node
    for started in node.keepers:
        started.kill()  # the kernel ends its program
        started.communicate()


NOTE = """
import os, signal, sys, time
def note(text):
    with open("log", "a") as file: file.write(text + "\\n")
def on_term(number, frame):
    note(f"term-{NAME}"); sys.exit(0)
"""
NAMED = NOTE + 'signal.signal(signal.SIGTERM, on_term); note("up"); time.sleep(600)'
PATIENT = 'NAME = "a"' + NAMED
PATIENT_STORE = 'NAME = "store"' + NAMED
DEAF = (
    NOTE
    + 'signal.signal(signal.SIGTERM, signal.SIG_IGN); note(f"up-{os.getpid()}"); time.sleep(600)'
)


def stop(started: subprocess.Popen, number: int = signal.SIGTERM) -> str:
    """Ask the keeper; what it said."""
    started.send_signal(number)
    _, said = started.communicate(timeout=WAIT_S)
    assert started.returncode == 0, said
    return said


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_asked_it_asks_the_program_and_exits_0(node, number):
    started = node.keep("a", PATIENT)
    node.until_log("up")
    stop(started, number)
    assert node.log("term") == ["term-a"]
    assert node.state("a")["state"] == "stopped"


def test_a_killed_program_is_started_again(node):
    started = node.keep("a", PATIENT)
    first = node.until_state("a", state="running")["pid"]
    node.until_log("up")
    os.kill(first, signal.SIGKILL)
    state = node.until_state("a", state="running", restarts=1)
    assert state["pid"] != first
    assert state["last_exit"]["how"] == "killed by SIGKILL"
    assert state["next_start_ms"] is None
    assert "a ended (killed by SIGKILL)" in stop(started)


def test_while_it_waits_the_time_of_the_next_start_is_said(node):
    node.keep("a", "import sys; sys.exit(78)")
    state = node.until_state("a", state="waiting")
    assert state["next_start_ms"] == state["last_exit"]["at_ms"] + 5000
    assert read_program(node.home, "a").is_kept


def test_a_program_that_ends_well_is_started_again_too(node):
    node.keep("a", "")
    assert node.until_state("a", restarts=2)["last_exit"]["code"] == 0


def test_the_program_leads_its_own_session(node):
    node.keep("a", PATIENT)
    pid = node.until_state("a", state="running")["pid"]
    until(lambda: os.getsid(pid) == pid, "own session")


def test_a_program_that_does_not_stop_is_killed_with_its_group(node):
    code = NOTE + 'import subprocess\nsubprocess.Popen([sys.executable, "-c", CHILD])\n' + DEAF
    started = node.keep("a", f"CHILD = {DEAF!r}\n" + code)
    until(lambda: len(node.log("up")) == 2, "both up")
    pids = [int(line.removeprefix("up-")) for line in node.log("up")]
    assert "did not stop in time" in stop(started)
    until(lambda: not any(map(alive, pids)), "both gone")


def test_what_a_crashed_program_leaves_in_its_group_is_gone_before_the_next(node):
    code = f"""
import subprocess, sys
subprocess.Popen([sys.executable, "-c", {DEAF!r}])
__import__("time").sleep(1)
"""
    node.keep("a", code)
    (first,) = node.until_log("up")
    node.until_state("a", restarts=1)
    until(lambda: not alive(int(first.removeprefix("up-"))), "leftover gone")


def test_when_the_keeper_is_killed_its_program_dies_too(node):
    started = node.keep("a", DEAF)
    node.until_log("up")
    pid = node.state("a")["pid"]
    started.kill()
    until(lambda: not alive(pid), "program gone")


def test_when_the_starter_is_killed_the_keeper_stops_its_program(node):
    command = node.command("a", PATIENT)
    code = f"import subprocess; subprocess.run({command!r})"
    starter = subprocess.Popen([sys.executable, "-c", code], cwd=node.home, env=node.environment())
    node.until_log("up")
    starter.kill()
    starter.wait()
    node.until_log("term-a")
    keeper_pid = node.until_state("a", state="stopped")["keeper"]
    until(lambda: not alive(keeper_pid), "keeper gone")


@pytest.fixture
def honcho(node):
    """A honcho that runs the keepers store, a and b, all up."""
    lines = []
    for name in ("store", "a", "b"):
        (node.home / f"{name}.py").write_text(f"NAME = {name!r}" + NAMED)
        python = sys.executable
        lines.append(f"{name}: exec {python} -m workers.keeper {name} {python} {name}.py")
    (node.home / "Procfile").write_text("\n".join(lines) + "\n")
    started = subprocess.Popen(
        [sys.executable, "-m", "honcho", "start"], cwd=node.home, env=node.environment(),
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        until(lambda: len(node.log("up")) == 3, "all up")
        yield started
    finally:
        started.kill()
        started.wait()


def until_all_stopped(node):
    for name in ("store", "a", "b"):
        pid = node.until_state(name, state="stopped")["keeper"]
        until(lambda: not alive(pid), f"keeper of {name} gone")  # noqa: B023  (called at once)


def test_a_killed_honcho_leaves_nothing_behind(node, honcho):
    """honcho's helper process survives it, so the keeper looks at honcho itself as well."""
    honcho.kill()
    until_all_stopped(node)
    assert node.log("term")[-1] == "term-store"


def test_an_interrupted_honcho_stops_the_store_last(node, honcho):
    honcho.send_signal(signal.SIGINT)
    honcho.wait(WAIT_S)
    until_all_stopped(node)
    assert node.log("term")[-1] == "term-store"


def test_a_killed_program_does_not_end_honcho(node, honcho):
    os.kill(node.state("a")["pid"], signal.SIGKILL)
    until(lambda: len(node.log("up")) == 4, "a up again")
    assert honcho.poll() is None
    assert node.state("b")["restarts"] == 0


def test_the_store_is_asked_after_all_others(node):
    store = node.keep("store", PATIENT_STORE)
    pool = node.keep("a", PATIENT.replace("note(f", "time.sleep(0.5); note(f"))
    until(lambda: len(node.log("up")) == 2, "both up")
    store.send_signal(signal.SIGTERM)
    time.sleep(0.1)
    stop(pool)
    assert store.wait(WAIT_S) == 0
    assert node.log("term") == ["term-a", "term-store"]


def test_the_store_does_not_wait_for_ever_for_another_keeper(node):
    pool = node.keep("a", PATIENT)
    store = node.keep("store", PATIENT_STORE)
    until(lambda: len(node.log("up")) == 2, "both up")
    stop(store)
    assert node.log("term") == ["term-store"]
    assert pool.poll() is None


def test_a_home_has_one_keeper_of_a_name(node):
    node.keep("a", PATIENT)
    node.until_log("up")
    second = node.keep("a", PATIENT)
    _, said = second.communicate(timeout=WAIT_S)
    assert second.returncode == 1
    assert "a already runs" in said and "LOCKSTEP_HOME" in said
    assert len(said.splitlines()) == 1


def test_a_program_that_is_not_there_is_said_in_one_line_each_time(node):
    started = subprocess.Popen(
        [sys.executable, "-m", "workers.keeper", "a", "no-such-program"],
        cwd=node.home, env=node.environment(), stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    node.keepers.append(started)
    node.until_state("a", restarts=1)
    assert "cannot start no-such-program: No such file or directory" in stop(started)


def test_a_home_that_cannot_be_written_is_said_in_one_line(node):
    (node.home / "run").write_text("no folder")
    started = node.keep("a", PATIENT)
    _, said = started.communicate(timeout=WAIT_S)
    assert started.returncode == 1
    assert "LOCKSTEP_HOME" in said and len(said.splitlines()) == 1


@pytest.mark.parametrize(
    "before_s, lived_s, code, expected_s",
    [
        (0.0, 0.2, 1, 0.1),
        (0.1, 0.2, 1, 0.2),
        (0.2, 0.2, -9, 0.4),
        (25.6, 0.2, 1, 30.0),
        (30.0, 9.9, 1, 30.0),
        (30.0, 10.0, 1, 0.1),
        (0.0, 0.2, 78, 5.0),
        (5.0, 0.2, 78, 10.0),
        (0.0, 3600.0, 78, 5.0),
        (20.0, 0.2, 78, 30.0),
    ],
)
def test_the_wait_doubles_for_who_dies_young(before_s, lived_s, code, expected_s):
    assert keeper.next_delay(before_s, lived_s, code) == expected_s


@pytest.mark.parametrize("toml", [None, "port = 8001\n", 'home = "there"\n'])
@pytest.mark.parametrize("variable", [None, "elsewhere"])
def test_home_is_what_the_settings_say(tmp_path, monkeypatch, toml, variable):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LOCKSTEP_HOME", raising=False)
    if toml:
        Path("lockstep.toml").write_text(toml)
    if variable:
        monkeypatch.setenv("LOCKSTEP_HOME", variable)
    assert Path(keeper.home()) == Settings().home


def test_each_line_of_the_procfile_is_a_keeper_of_its_name():
    lines = (ROOT / "Procfile").read_text().splitlines()
    for line in lines:
        name, command = line.split(": ")
        start, module = command.split()[:5], command.split()[7]
        assert start == ["exec", "python", "-m", "workers.keeper", name]
        assert find_spec(module) or find_spec(module + ".__main__"), module
    assert [line.split(":")[0] for line in lines] == [
        "store", "api", "router", "cpu", "gpu", "webhooks"
    ]  # fmt: skip
