"""`lockstep bench soak`: a whole node under many jobs at once for a long time; is it flat?

The node is our own over a temporary home: store, api, router, cpu pool and webhooks, each behind
its keeper, with results that expire soon, so that after the warm-up as much goes as comes.

    | warm-up | measured: samples every few seconds | drain | results expire: what is left? |
"""

import asyncio
import json
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Thread
from typing import Any, Final

from ingest.command.bench import soak_watch as watch
from ingest.command.bench.own_node import Node, running
from ingest.command.bench.soak_load import Load
from workers.store import Store
from workers.wire import Keys

RESULT_TTL_S: Final = 60
AFTER_S: Final = 30.0  # beyond the life of a result, until nothing of it may be left
PROGRAMS: Final = {  # each behind its keeper, as the Procfile has them
    name: ["workers.keeper", name, sys.executable, "-m", *program]
    for name, program in {
        "store": ["workers.store_server"],
        "api": ["ingest"],
        "router": ["router"],
        "cpu": ["workers.pool", "cpu"],
        "webhooks": ["workers.webhook"],
    }.items()
}
OPTIONS: Final = {
    "LOCKSTEP_RESULT_TTL_S": str(RESULT_TTL_S),
    "LOCKSTEP_WEBHOOK_ALLOW": "127.0.0.0/8",
    "LOCKSTEP_GPU": "off",
}


@dataclass(frozen=True)
class Plan:
    """seconds: of the load, warm-up included.   sample_s: between two looks"""

    seconds: float
    warm_up_s: float
    concurrent: int
    sessions: int
    seed: int
    sample_s: float
    threads: int


def measure(
    plan: Plan, folder: Path, out: Path | None, progress: Callable[[str], None]
) -> dict[str, Any]:
    """The whole soak as one object.   out: samples are written there as they are taken

    Raises Failure.
    """
    options = {**OPTIONS, "LOCKSTEP_THREADS": str(plan.threads), "LOCKSTEP_LOG_LEVEL": "warning"}
    with running(folder, PROGRAMS, options) as node:
        node.wait_until(node.answers)
        store = Store(node.url, Keys("lockstep"))
        load = Load(store, node.port, plan.concurrent, plan.sessions, plan.seed)
        samples, lost = soak(plan, node, store, load, out, progress)
        progress("results expire")
        time.sleep(RESULT_TTL_S + AFTER_S)
        left = watch.families(store)
    return summary(plan, load, samples, lost, left)


def soak(
    plan: Plan,
    node: Node,
    store: Store,
    load: Load,
    out: Path | None,
    progress: Callable[[str], None],
) -> tuple[list[watch.Sample], int]:
    """Load and looks, until the last job has ended; those after the warm-up, and jobs lost."""
    lost: list[int] = []
    thread = Thread(target=lambda: lost.append(asyncio.run(load.run(plan.seconds))), daemon=True)
    begin, samples = time.monotonic(), []
    thread.start()
    while thread.is_alive():
        thread.join(plan.sample_s)
        node.check()
        at_s = time.monotonic() - begin
        one = watch.sample(node, store, at_s)
        if out is not None:
            with out.open("a") as file:
                file.write(json.dumps(asdict(one) | {"jobs": len(load.records)}) + "\n")
        if plan.warm_up_s <= at_s < plan.seconds:
            samples.append(one)
        progress(f"{at_s / 60:.1f} min, {len(load.records)} jobs")
    return samples, lost[0] if lost else plan.concurrent


def summary(
    plan: Plan, load: Load, samples: list[watch.Sample], lost: int, left: dict[str, int]
) -> dict[str, Any]:
    rows = watch.rows_of(samples)
    parts = watch.thirds(load.records, plan.warm_up_s, plan.seconds)
    first, last = samples[0], samples[-1]
    return {
        "bench": "soak",
        "plan": asdict(plan),
        "jobs": len(load.records),
        "lost": lost,
        "ends": dict(Counter(record.end for record in load.records)),
        "webhooks_repeated": load.repeated,
        "verdict": watch.verdict(rows, parts, left, plan.sessions),
        "thirds": parts,
        "store_mib": [round(one.store_bytes / watch.MIB, 1) for one in (first, last)],
        "keys": [first.keys, last.keys],
        "files": [first.files, last.files],
        "file_mib": [round(one.file_bytes / watch.MIB, 1) for one in (first, last)],
        "left": left,
        "rows": rows,
    }
