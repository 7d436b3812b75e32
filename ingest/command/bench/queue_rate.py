"""`lockstep bench queue`: jobs a second from stream to end with a model that computes nothing.

A node of our own (store, router, a pool's worker around a free engine) beside plain RQ on the same
Redis, by turns:

    ours    XADD ──► router: admit, place ──► RQ's queue ──► worker: lease, journal, finish
    RQ      enqueue_many ──► RQ's queue ──► SimpleWorker runs a function that returns its argument

Both are timed from the first job sent to the last one finished, while the jobs are being sent.
What one job of ours costs is counted by the kernel (CPU of each process) and by the store (calls
of scripts, commands, bytes).
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

import msgpack
from redis.exceptions import RedisError

from ingest.command.bench.own_node import PATIENCE_S, Node, running
from ingest.command.failure import Failure
from workers.store import Store
from workers.wire import Keys

SLA: Final = "standard"
PROMPT: Final = "What is the capital of France?"
PIPELINED: Final = 100  # jobs sent by one call
LOOK_S: Final = 0.02
STUCK_S: Final = 120.0
FORKING_PART: Final = 10  # RQ's forking worker gets a tenth of the jobs: it would take minutes
PROCESSES: Final = ("store", "router", "pool")


@dataclass(frozen=True)
class Plan:
    """rounds times: `jobs` by us, then `jobs` by RQ. places: of the pool."""

    jobs: int
    rounds: int
    places: int


def measure(plan: Plan, folder: Path, progress: Callable[[str], None]) -> dict[str, Any]:
    """The whole bench as one object with `rows`. Raises Failure."""
    programs = {
        "store": ["workers.store_server"],
        "router": ["router"],
        "pool": ["ingest.command.bench.free_engine", "0"],
    }
    options = {"LOCKSTEP_MAX_BATCH": str(plan.places), "LOCKSTEP_MAX_QUEUE": "1000000"}
    with running(folder, programs, options) as node:
        store = Store(node.url, Keys("lockstep"))
        node.wait_until(lambda: is_ready(store))
        ours_run(node, store, plan.jobs // 4)  # what is imported at first use is imported now
        ours, peers = [], []
        for number in range(plan.rounds):
            progress(f"round {number + 1} of {plan.rounds}")
            ours.append(ours_run(node, store, plan.jobs))
            peers.append(peer_run(node, "simple", plan.jobs))
        forking = peer_run(node, "forking", max(1, plan.jobs // FORKING_PART))
    rows = [row("ours", ours), row("RQ SimpleWorker", peers), row("RQ Worker, forking", [forking])]
    ratio = rows[0]["jobs_per_s"] / rows[1]["jobs_per_s"]
    told = {"bench": "queue", "jobs": plan.jobs, "rounds": plan.rounds, "places": plan.places}
    return {**told, "ratio": round(ratio, 2), "cores": os.cpu_count(), "rows": rows}


def is_ready(store: Store) -> bool:
    """Whether the pool has said so, and the router lives."""
    try:
        ready = any(load.state == "ready" for load in store.loads())
        return ready and bool(list(store.redis.scan_iter(store.keys.router("*"), count=1000)))
    except RedisError:
        return False


def ours_run(node: Node, store: Store, jobs: int) -> dict[str, float]:
    """Sends the jobs and waits for their ends: seconds, and what one of them cost."""
    stream, before = store.keys.requests(SLA), ended(store)
    counted, cpu, begin = counts(store), node.cpu_us(), time.perf_counter()
    send(store, stream, jobs)
    sent_s = time.perf_counter() - begin
    while (done := ended(store) - before) < jobs:
        if time.perf_counter() - begin > STUCK_S:
            raise Failure(f"bench queue: {done} of {jobs} jobs ended within {STUCK_S:.0f} s")
        time.sleep(LOOK_S)
    seconds = time.perf_counter() - begin
    used, told = node.cpu_us(), counts(store)
    costs = {f"{name}_us": (used[name] - cpu[name]) / jobs for name in PROCESSES}
    costs |= {name: (told[name] - counted[name]) / jobs for name in told}
    return {"seconds": seconds, "jobs_per_s": jobs / seconds, "send_s": sent_s, **costs}


def send(store: Store, stream: str, jobs: int) -> None:
    """Puts requests of one token on the stream."""
    body = msgpack.packb({"prompt": PROMPT, "max_tokens": 1})
    for begin in range(0, jobs, PIPELINED):
        with store.redis.pipeline(transaction=False) as pipeline:
            for _ in range(begin, min(begin + PIPELINED, jobs)):
                pipeline.xadd(stream, {"m": body})
            pipeline.execute()


def ended(store: Store) -> int:
    """Jobs that have finished so far. Raises Failure when one ended otherwise."""
    ends: dict[Any, Any] = store.redis.hgetall(store.keys.ends)
    other = [name.decode() for name in ends if name != f"{SLA} finished".encode()]
    if other:
        raise Failure(f"bench queue: a job ended as {other[0]}")
    return sum(map(int, ends.values()))


def counts(store: Store) -> dict[str, float]:
    """What the store has counted so far."""
    info: dict[str, Any] = store.redis.info("everything")
    scripts = sum(info.get(f"cmdstat_{n}", {}).get("calls", 0) for n in ("eval", "evalsha"))
    return {
        "round_trips": info["total_reads_processed"],
        "scripts": scripts,
        "commands": info["total_commands_processed"],
        "bytes_in": info["total_net_input_bytes"],
        "bytes_out": info["total_net_output_bytes"],
        "log_bytes": info["aof_current_size"],
    }


def peer_run(node: Node, kind: str, jobs: int) -> dict[str, float]:
    """The same by RQ, in processes of its own. Raises Failure."""
    command = [sys.executable, "-m", "ingest.command.bench.rq_peer", node.url, kind, str(jobs)]
    environment = node.environment | {"RQ_KEY_PREFIX": "peer:rq"}
    before = node.cpu_us()["store"]
    done = subprocess.run(
        command, env=environment, capture_output=True, timeout=STUCK_S + PATIENCE_S, check=False
    )
    if done.returncode:
        raise Failure(f"bench queue: RQ's worker failed: {done.stderr.decode()[-300:]}")
    told = json.loads(done.stdout)
    return {
        "seconds": told["seconds"],
        "jobs_per_s": jobs / told["seconds"],
        "worker_us": told["worker_cpu_us"] / jobs,
        "store_us": (node.cpu_us()["store"] - before) / jobs,
    }


def row(name: str, runs: list[dict[str, float]]) -> dict[str, Any]:
    """Medians of all that was measured, and each run's rate."""
    found = {key: round(median(run[key] for run in runs), 2) for key in runs[0]}
    return {"case": name, **found, "runs": [round(run["jobs_per_s"]) for run in runs]}
