"""`lockstep bench node`: what the node costs beside its engine, by process, in microseconds.

A node of our own (store, router, api, and a pool that computes nothing) answers many short and a
few long requests. CPU time is read from the kernel for each process, so it holds on a busy machine:

    cost of a short request = request + 1 token       cost of a long one = request + N tokens
"""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ingest.client import Client
from ingest.command.bench.own_node import PATIENCE_S, Node, ask, running
from ingest.command.failure import Failure

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


def measure(plan: Plan, folder: Path, progress: Callable[[str], None]) -> dict[str, Any]:
    """The whole bench as one object with `rows`. Raises Failure."""
    programs = {
        "store": ["workers.store_server"],
        "router": ["router"],
        "pool": ["ingest.command.bench.free_engine", str(plan.step_ms)],
        "api": ["ingest"],
    }
    with running(folder, programs, {"LOCKSTEP_MAX_BATCH": str(plan.sessions)}) as node:
        node.wait_until(node.answers)
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
