"""A node of a bench's own, over a temporary home: its processes, and what they take of the machine.

CPU time is what the kernel counts for each process, so it holds on a busy machine.
"""

import http.client
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from socket import create_server
from tempfile import TemporaryDirectory
from typing import Any, Final

from ingest.command.failure import Failure

PATIENCE_S: Final = 60.0
LOOK_S: Final = 0.05
STOP_S: Final = 5.0
Programs = Mapping[str, Sequence[str]]  # name to `python -m` and arguments, in order of start


class Node:
    """Processes over a temporary home."""

    def __init__(
        self, home: Path, folder: Path, programs: Programs, options: Mapping[str, str]
    ) -> None:
        """folder: of the model.   options: LOCKSTEP_* variables beside home, model and ports"""
        (home / "models").symlink_to(folder.parent.resolve())
        self.port, store_port = free_port(), free_port()
        self.home, self.url = home, f"redis://127.0.0.1:{store_port}/0"
        kept = {name: v for name, v in os.environ.items() if not name.startswith("LOCKSTEP_")}
        self.environment = kept | {
            "LOCKSTEP_HOME": str(home),
            "LOCKSTEP_MODEL": folder.name,
            "LOCKSTEP_PORT": str(self.port),
            "LOCKSTEP_STORE_PORT": str(store_port),
            "LOCKSTEP_LOG_LEVEL": "error",
            **options,
        }
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        for name, program in programs.items():
            command = [sys.executable, "-m", *program]
            errors = subprocess.DEVNULL if name == "store" else None  # Valkey chats there
            self.processes[name] = subprocess.Popen(
                command, env=self.environment, stdout=subprocess.DEVNULL, stderr=errors
            )

    def wait_until(self, is_ready: Callable[[], bool]) -> None:
        """Raises Failure when it is not within PATIENCE_S, or when a process ends."""
        for _ in range(int(PATIENCE_S / LOOK_S)):
            if is_ready():
                return
            self.check()
            time.sleep(LOOK_S)
        raise Failure(f"bench: the node was not ready within {PATIENCE_S:.0f} s")

    def check(self) -> None:
        """Raises Failure when a process has ended: what it said is on stderr."""
        ended = [name for name, process in self.processes.items() if process.poll() is not None]
        if ended:
            raise Failure(f"bench: {', '.join(ended)} ended")

    def answers(self) -> bool:
        """Whether its HTTP door says that the node is ready."""
        try:
            return ask(self.port, "GET", "/readyz", None)[0] == 200
        except OSError:
            return False

    def cpu_us(self) -> dict[str, float]:
        """CPU time so far, by process."""
        return {name: cpu_us(process.pid) for name, process in self.processes.items()}

    def stop(self) -> None:
        """The first one, whom the others need, when they have gone."""
        first, *others = self.processes.values()
        for process in others:
            process.terminate()
        for process in (*others, first):
            process.terminate()
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextmanager
def running(folder: Path, programs: Programs, options: Mapping[str, str]) -> Iterator[Node]:
    """A node that has been started, ready or not; nothing of it is left afterwards."""
    with TemporaryDirectory(prefix="lockstep-bench-") as home:
        node = Node(Path(home), folder, programs, options)
        try:
            yield node
        finally:
            node.stop()


def cpu_us(pid: int) -> float:
    """CPU time of all threads of a process; a thread that ended meanwhile counts nothing."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            total += int((task / "schedstat").read_text().split()[0])
        except OSError:
            continue
    return total / 1000


def free_port() -> int:
    with create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def ask(port: int, method: str, path: str, body: dict[str, Any] | None) -> tuple[int, bytes]:
    """One HTTP exchange on a connection of its own: status and whole body."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    try:
        raw = None if body is None else json.dumps(body).encode()
        connection.request(method, path, raw)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()
