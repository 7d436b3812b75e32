"""`lockstep bench node`: what the node costs beside its engine, by process, in microseconds.

A node of our own (store, router, api, and a pool that computes nothing) answers many short and a
few long requests. CPU time is read from the kernel for each process, so it holds on a busy machine:

    cost of a short request = request + 1 token       cost of a long one = request + N tokens
"""

import http.client
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from socket import create_server
from tempfile import TemporaryDirectory
from typing import Any, Final

from ingest.client import Client
from ingest.command.failure import Failure

PATIENCE_S: Final = 60.0
LATENCIES_MAX: Final = 200  # requests, one after the other
PROMPT: Final = "What is the capital of France?"
PROCESSES: Final = ("store", "router", "pool", "api")


@dataclass(frozen=True)
class Plan:
    """requests of one token, then 2 * sessions of `tokens`; sessions clients at once."""

    requests: int
    tokens: int
    sessions: int
    step_ms: float


class Node:
    """Four processes over a temporary home."""

    def __init__(self, home: Path, folder: Path, plan: Plan) -> None:
        (home / "models").symlink_to(folder.parent.resolve())
        self.port, store_port = free_port(), free_port()
        self.url = f"redis://127.0.0.1:{store_port}/0"
        kept = {name: v for name, v in os.environ.items() if not name.startswith("LOCKSTEP_")}
        self.environment = kept | {
            "LOCKSTEP_HOME": str(home),
            "LOCKSTEP_MODEL": folder.name,
            "LOCKSTEP_PORT": str(self.port),
            "LOCKSTEP_STORE_PORT": str(store_port),
            "LOCKSTEP_MAX_BATCH": str(plan.sessions),
            "LOCKSTEP_LOG_LEVEL": "error",
        }
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        pool = ["ingest.command.bench.free_engine", str(plan.step_ms)]
        programs = (["workers.store_server"], ["router"], pool, ["ingest"])
        for name, program in zip(PROCESSES, programs, strict=True):
            command = [sys.executable, "-m", *program]
            errors = subprocess.DEVNULL if name == "store" else None  # Valkey chats there
            self.processes[name] = subprocess.Popen(
                command, env=self.environment, stdout=subprocess.DEVNULL, stderr=errors
            )

    def wait_until_ready(self) -> None:
        """Raises Failure."""
        for _ in range(int(PATIENCE_S / 0.1)):
            try:
                if ask(self.port, "GET", "/readyz", None)[0] == 200:
                    return
            except OSError:
                pass
            died = [name for name, p in self.processes.items() if p.poll() is not None]
            if died:
                raise Failure(f"bench node: {', '.join(died)} did not start")
            time.sleep(0.1)
        raise Failure(f"bench node: the node was not ready within {PATIENCE_S:.0f} s")

    def cpu_us(self) -> dict[str, float]:
        """CPU time so far, by process."""
        return {name: cpu_us(process.pid) for name, process in self.processes.items()}

    def stop(self) -> None:
        for name in reversed(PROCESSES):
            if name in self.processes:
                self.processes[name].terminate()
        for process in self.processes.values():
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


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


@contextmanager
def running(folder: Path, plan: Plan) -> Iterator[Node]:
    with TemporaryDirectory(prefix="lockstep-bench-") as home:
        node = Node(Path(home), folder, plan)
        try:
            node.wait_until_ready()
            yield node
        finally:
            node.stop()


def measure(plan: Plan, folder: Path, progress: Callable[[str], None]) -> dict[str, Any]:
    """The whole bench as one object with `rows`. Raises Failure."""
    with running(folder, plan) as node:
        stream(node, 1)  # what is imported at first use is imported now
        progress("latency")
        rows = latencies(node, min(plan.requests, LATENCIES_MAX))
        progress("short requests")
        short = cost(node, plan.sessions, plan.requests, 1)
        progress("long requests")
        long = cost(node, plan.sessions, 2 * plan.sessions, plan.tokens)
    for name in PROCESSES:
        token = (long[name] - short[name]) / (plan.tokens - 1)
        rows.append(cpu_row(name, short[name] - token, token))
    last = rows[-len(PROCESSES) :]
    rows.append(cpu_row("sum", sum(r["request"] for r in last), sum(r["token"] for r in last)))
    return {"bench": "node", "sessions": plan.sessions, "step_ms": plan.step_ms, "rows": rows}


def cpu_row(process: str, request: float, token: float) -> dict[str, Any]:
    told = {"case": "cpu", "process": process, "unit": "us"}
    return {**told, "request": round(request, 1), "token": round(token, 2)}


def latencies(node: Node, count: int) -> list[dict[str, Any]]:
    """A one-token request by each way, one after the other: wall time from sending to result."""
    client = Client(node.url, "lockstep")

    def redis() -> None:
        client.result(client.enqueue(prompt=PROMPT, max_tokens=1), timeout_s=PATIENCE_S)

    body = {"prompt": PROMPT, "max_tokens": 1}
    ways = {
        "http": lambda: ask(node.port, "POST", "/v1/completions", body),
        "http stream": lambda: stream(node, 1),
        "redis": redis,
    }
    return [latency_row(path, way, count) for path, way in ways.items()]


def latency_row(path: str, way: Callable[[], Any], count: int) -> dict[str, Any]:
    times = []
    for _ in range(count):
        begin = time.perf_counter()
        way()
        times.append((time.perf_counter() - begin) * 1e6)
    times.sort()
    p50, p99 = times[len(times) // 2], times[len(times) * 99 // 100]
    return {"case": "latency", "path": path, "unit": "us", "p50": round(p50), "p99": round(p99)}


def cost(node: Node, sessions: int, requests: int, tokens: int) -> dict[str, float]:
    """CPU time of each process for one streamed request of so many tokens."""
    before = node.cpu_us()
    with ThreadPoolExecutor(sessions) as clients:
        list(clients.map(lambda _: stream(node, tokens), range(requests)))
    after = node.cpu_us()
    return {name: (after[name] - before[name]) / requests for name in PROCESSES}


def stream(node: Node, tokens: int) -> None:
    """One streamed answer, to its end. Raises Failure when it is not complete."""
    body = {"prompt": PROMPT, "max_tokens": tokens, "stream": True}
    status, answer = ask(node.port, "POST", "/v1/completions", body)
    if status != 200 or not answer.endswith(b"[DONE]\n\n") or answer.count(b" token") < tokens:
        raise Failure(f"bench node: the node answered {status}: {answer[-300:]!r}")
