"""The simulator beside reality: three workloads on a node with two pools, and simulated.

    python tests/bench/bench_simulator.py [--requests 60] [--seed 1] [--log FOLDER] [--json]

It starts a node of its own: the CPU pool, and LOCKSTEP_GPU=cpu in the place of a GPU, one thread
each, the default model. Rates are a share of what the pools' own cost models say they could take,
so that it means the same on every machine. A warm-up of each workload comes first: what the pools
report after it is what the simulator plays them by; nothing is fitted afterwards.
"""

import argparse
import json
import os
import socket
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from ingest.command.bench.serve.beside import as_written, compared, hardware_of, simulate
from ingest.command.bench.serve.load import Load, wishes_of
from ingest.command.bench.serve.record import Record
from ingest.command.bench.serve.run import context_of, watched
from router.simulator.hardware import PoolHardware
from router.simulator.workload import Lengths
from tests.node.running_node import Node, wait_for
from workers.model import catalog
from workers.settings import Settings

MODEL = "smollm2-135m"
MIX = {"realtime": 0.3, "standard": 0.4, "batch": 0.3}
PLACES = 4  # sequences of a pool at once
PATIENCE_S = 300.0
SEEDS_APART = 1000  # of two workloads: the same one would find the other's prompts in memory


@dataclass(frozen=True)
class Case:
    """A workload. share: of what the pools could take; shape 1: Poisson, less: bursts."""

    name: str
    share: float
    shape: float
    prompt: int
    output: int


CASES = (
    Case("steady", 0.5, 1.0, 128, 24),
    Case("bursts", 0.4, 0.3, 128, 24),
    Case("long prompts", 0.5, 1.0, 384, 24),
)


def load_of(case: Case, rate: float, seconds: float, seed: int) -> Load:
    prompt = Lengths(case.prompt, 0.5, 2048)
    output = Lengths(case.output, 0.5, 256)
    return Load(rate, seconds, case.shape, MIX, prompt, output, seed)


def could_take(pool: PoolHardware, case: Case) -> float:
    """Requests a second, by the pool's cost model, with all its places taken."""
    context = case.prompt + case.output / 2
    step_ms = pool.cost.step_ms(pool.max_batch, pool.max_batch * context)
    prefill_ms = case.prompt * pool.cost.token_ms(case.prompt / 2)
    return 1000 / (prefill_ms + case.output * step_ms / pool.max_batch)


def start_node(folder: Path) -> tuple[Node, Settings]:
    """With settings to find it."""
    catalog.ensure(folder, MODEL, progress=None)
    ports = [free_port(), free_port()]
    options = {"LOCKSTEP_GPU": "cpu", "LOCKSTEP_THREADS": "1", "LOCKSTEP_MAX_BATCH": str(PLACES)}
    options["LOCKSTEP_CALIBRATE"] = "auto"  # as a node that a person starts
    node = Node(folder, *ports, **options)
    node.start()
    settings = Settings(
        home=folder, model=MODEL, port=ports[0], store_port=ports[1], key_prefix="nodetest"
    )
    wait_for(lambda: len([p for p in node.store.loads() if p.state == "ready"]) == 2, "two pools")
    return node, settings


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def measure(
    case: Case, node: Node, settings: Settings, requests: int, seed: int
) -> tuple[dict, list[Record]]:
    """The row of a workload, and what was measured."""
    context = context_of(settings)
    for burst in range(5):  # until both pools know their costs
        if all(load.cost is not None for load in node.store.loads()):
            break
        first = wishes_of(load_of(case, 10.0 * (burst + 1), 2.0, seed + 1))
        watched(settings, first, "http", seed + 1, PATIENCE_S)
        time.sleep(1.5)
    rate = case.share * sum(
        could_take(pool, case) for pool in hardware_of(node.store.loads(), context).pools.values()
    )
    warmup = wishes_of(load_of(case, rate, requests / rate / 3, seed + 2))
    watched(settings, warmup, "http", seed + 2, PATIENCE_S)
    time.sleep(1.5)  # their reports are a second old
    hardware = hardware_of(node.store.loads(), context)
    wishes = wishes_of(load_of(case, rate, requests / rate, seed))
    records = watched(settings, wishes, "http", seed, PATIENCE_S)
    simulated = simulate(as_written(wishes, records), hardware, settings.classes)
    row = {"case": case.name, "requests": len(wishes), "rate": round(rate, 2)}
    for quantity in compared(records, simulated):
        row |= {f"{quantity['quantity']}_{k}": v for k, v in quantity.items() if k != "quantity"}
    return row, records


def table(rows: list[dict]) -> str:
    """Markdown: measured, simulated, ratio of each quantity."""
    names = ("ttft_ms_p50", "tpot_ms_p50", "output_tokens_per_s")
    heads = ["workload", "requests", "a second", *(f"{n} measured / simulated" for n in names)]
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for row in rows:
        cells = [row["case"], str(row["requests"]), str(row["rate"])]
        cells += [
            f"{row[f'{n}_measured']} / {row[f'{n}_simulated']} ({row[f'{n}_ratio']})" for n in names
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", type=int, default=60, help="of each workload, about")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--share", type=float, default=1.0, help="of each workload's own share")
    parser.add_argument("--log", type=Path)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory(prefix="bench-simulator-") as folder:
        node, settings = start_node(Path(folder))
        try:
            for number, case in enumerate(CASES):
                case = replace(case, share=case.share * arguments.share)
                seed = arguments.seed + SEEDS_APART * number  # whose prompts begin otherwise
                row, records = measure(case, node, settings, arguments.requests, seed)
                rows.append(row)
                if arguments.log:
                    arguments.log.mkdir(exist_ok=True)
                    path = arguments.log / f"{case.name.replace(' ', '-')}.jsonl"
                    path.write_text("".join(json.dumps(r.line()) + "\n" for r in records))
        finally:
            node.kill()
    load = os.getloadavg()[0]
    print(
        json.dumps({"bench": "simulator", "busy": load, "rows": rows})
        if arguments.json
        else f"{table(rows)}\n\nload average {load:.1f} on {os.cpu_count()} cores"
    )


if __name__ == "__main__":
    main()
