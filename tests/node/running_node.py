"""A whole node as processes, as a person starts it: honcho, the Procfile, free ports, new home."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import psutil

from workers.store import Store
from workers.wire import TERMINAL, EndEvent, Keys

ROOT = Path(__file__).parents[2]
PATIENCE_S = 120.0
PROGRAMS = ("store", "api", "router", "cpu", "gpu", "webhooks")


def wait_for(condition: Callable[[], Any], what: str, patience_s: float = PATIENCE_S) -> Any:
    """What the condition gives as soon as it is true."""
    end = time.monotonic() + patience_s
    while not (value := condition()):
        assert time.monotonic() < end, f"not in {patience_s} s: {what}"
        time.sleep(0.05)
    return value


def is_gone(process: psutil.Process) -> bool:
    """Whether it has ended, also while we look."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def command_of(process: psutil.Process) -> str:
    """Its command; "" when it has ended."""
    try:
        return "" if is_gone(process) else " ".join(process.cmdline())
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return ""


class Node:
    """Started by start(), stopped by stop() or, whatever happened, by kill()."""

    wrapper: tuple[str, ...] = ()  # a command that runs honcho in its turn

    def __init__(self, home: Path, port: int, store_port: int, **settings: str) -> None:
        """settings are LOCKSTEP_* variables; with a LOCKSTEP_REDIS_URL, store_port is idle."""
        self.home = home
        self.url = f"http://127.0.0.1:{port}"
        store_url = settings.get("LOCKSTEP_REDIS_URL", f"redis://127.0.0.1:{store_port}/0")
        prefix = settings.get("LOCKSTEP_KEY_PREFIX", "nodetest")
        self.store = Store(store_url, Keys(prefix))
        self.log = home / "node.log"
        self.seen: dict[int, psutil.Process] = {}
        environment = {k: v for k, v in os.environ.items() if not k.startswith("LOCKSTEP_")}
        self.environment = environment | {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "LOCKSTEP_HOME": str(home),
            "LOCKSTEP_PORT": str(port),
            "LOCKSTEP_STORE_PORT": str(store_port),
            "LOCKSTEP_KEY_PREFIX": prefix,
            "LOCKSTEP_KV_MIB": "600",
            "LOCKSTEP_CALIBRATE": "off",
            **settings,
        }

    def start(self) -> None:
        honcho = [sys.executable, "-m", "honcho", "start", "-f", str(ROOT / "Procfile")]
        self.honcho = subprocess.Popen(
            [*self.wrapper, *honcho, "-d", str(self.home)],
            env=self.environment,
            cwd=self.home,
            stdout=self.log.open("ab"),
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        wait_for(self.is_ready, f"ready\n{self.tail()}")

    def is_ready(self) -> bool:
        assert self.honcho.poll() is None, f"honcho ended\n{self.tail()}"
        try:
            return httpx.get(f"{self.url}/readyz", timeout=5).status_code == 200
        except httpx.HTTPError:
            return False

    def tail(self) -> str:
        return self.log.read_text()[-3000:] if self.log.exists() else ""

    def processes(self) -> list[psutil.Process]:
        """All of the node, honcho first."""
        honcho = psutil.Process(self.honcho.pid)
        found = [honcho, *honcho.children(recursive=True)]
        self.seen.update({process.pid: process for process in found})
        return found

    def program(self, name: str) -> psutil.Process:
        """The program that a keeper keeps."""

        def running() -> psutil.Process | None:
            state = json.loads((self.home / "run" / f"{name}.json").read_text())
            try:
                return psutil.Process(state["pid"]) if state["state"] == "running" else None
            except psutil.NoSuchProcess:  # its keeper has not seen its end yet
                return None

        found: psutil.Process = wait_for(running, f"{name} runs")
        return found

    def kill_program(self, name: str) -> None:
        """kill -9, and wait until the keeper has started it again."""
        process = self.program(name)
        process.send_signal(signal.SIGKILL)
        wait_for(lambda: is_gone(process), "killed")
        wait_for(lambda: self.program(name).pid != process.pid, f"{name} runs again")

    def interrupt(self) -> float:
        """Ctrl-C: SIGINT to the foreground group, honcho and the keepers. Gives seconds."""
        self.processes()
        begin = time.monotonic()
        os.killpg(self.honcho.pid, signal.SIGINT)
        self.honcho.wait(PATIENCE_S)
        return time.monotonic() - begin

    def left_over(self) -> list[str]:
        """Processes of the node that still run."""
        return [command for one in self.seen.values() if (command := command_of(one))]

    def kill(self) -> None:
        """The end of every test, also of one that failed."""
        if self.honcho.poll() is None:
            self.processes()
            self.honcho.kill()
            self.honcho.wait()
        for process in self.seen.values():
            with suppress(psutil.NoSuchProcess):
                process.kill()

    def add(self, *words: str, sla: str = "standard") -> str:
        """XADD with plain fields, as redis-cli sends it; gives the id of the request."""
        stream = self.store.keys.requests(sla)
        entry_id = self.store.redis.execute_command("XADD", stream, "*", *words)
        return f"{sla}-{entry_id.decode()}"

    def end(self, request_id: str) -> dict[str, Any]:
        """The job once it has ended."""

        def ended() -> dict[str, Any] | None:
            job = self.store.job(request_id)
            return job if job and job["status"] in TERMINAL else None

        return wait_for(ended, f"end of {request_id}\n{self.tail()}")

    def num_tokens(self, request_id: str) -> int:
        return self.store.redis.xlen(self.store.keys.tokens(request_id))

    def journalled(self, request_id: str) -> tuple[list[int], str]:
        """Token ids and text of the journal, which must be whole and end once."""
        entries = self.store.tokens(request_id)
        *tokens, end = [event for _, event in entries]
        assert isinstance(end, EndEvent)
        assert [token.index for token in tokens] == list(range(len(tokens)))
        return [token.token_id for token in tokens], "".join(e.text for e in (*tokens, end))
