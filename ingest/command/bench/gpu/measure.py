"""The process that measures: part after part, each written down as it comes.

    python -m ingest.command.bench.gpu.measure OUT SECONDS THREADS real|rehearsal PART,PART,...

What is in OUT already is not measured again, so a run that was cut short goes on where it stopped.
No part begins after SECONDS; `note` in OUT then says which was left out.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ingest.command.bench.gpu.bench import Bench
from ingest.command.bench.gpu.cpu_side import CpuSide
from ingest.command.bench.gpu.exact import exact_rows
from ingest.command.bench.gpu.kernels import attention_rows, copy_rows, gemm_rows, gemv_rows
from ingest.command.bench.gpu.model import (
    Sides,
    blocks_for,
    both_rows,
    decode_rows,
    move_rows,
    prefill_rows,
)
from ingest.command.bench.gpu.plan import PARTS, REAL, REHEARSAL, Plan, Row, Tell
from ingest.command.bench.gpu.seat import Seat, state_shapes_of
from ingest.command.bench.gpu.standin import standin
from kernels.arrays import DeviceError
from kernels.cuda.device import device_ops, open_device
from kernels.ops import KvArena, StateArena
from workers.engine.limits import kv_shape_of
from workers.model.build import architecture_of
from workers.model.decoder import Decoder
from workers.model.on_device import OnDevice
from workers.model.pack import Weights

OF_KERNELS: dict[str, Callable[[Bench, Tell], Iterator[Row]]] = {
    "exact": exact_rows,
    "copy": copy_rows,
    "gemv": gemv_rows,
    "gemm": gemm_rows,
    "attention": attention_rows,
}
OF_MODEL: dict[str, Callable[[Sides, Tell], Iterator[Row]]] = {
    "decode": decode_rows,
    "prefill": prefill_rows,
    "move": move_rows,
    "both": both_rows,
}


class Record:
    """OUT: an object with `rows`, whole after each part."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self.found: dict[str, Any] = {"bench": "gpu", "done": [], "rows": []}
        if plan.out.exists():
            before = json.loads(plan.out.read_text())
            if before.get("is_rehearsal") == plan.is_rehearsal:
                self.found = before
        self.found |= {"is_rehearsal": plan.is_rehearsal, "threads": plan.threads}

    def add(self, part: str, rows: list[Row], seconds: float) -> None:
        self.found["rows"] += [{"case": part, **row} for row in rows]
        self.found["done"].append(part)
        self.found.setdefault("seconds", {})[part] = round(seconds, 1)
        self.write()

    def write(self) -> None:
        self._plan.out.parent.mkdir(parents=True, exist_ok=True)
        aside = self._plan.out.with_suffix(".part")
        aside.write_text(json.dumps(self.found, indent=1) + "\n")
        aside.replace(self._plan.out)

    def value(self, part: str) -> float | None:
        """Of the first row of a part."""
        rows = [row for row in self.found["rows"] if row["case"] == part]
        return float(rows[0]["ours"]) if rows else None


def measure(plan: Plan, tell: Tell) -> None:
    """Raises DeviceError."""
    begin, record = time.monotonic(), Record(plan)
    parts = [part for part in plan.parts if part not in record.found["done"]]
    if not parts:
        return
    weights = cpu = sides = None
    if set(parts) & OF_MODEL.keys():
        tell("making the stand-in's weights")
        weights = standin(plan.sizes.like)
        cpu = CpuSide(
            plan, weights, blocks=_cpu_blocks(plan), slots=max(2, plan.sizes.cpu_sessions)
        )
    device = open_device()
    record.found |= {"gpu": device.name, "sm": device.sm, "vram_bytes": device.driver.total_bytes()}
    bench = Bench(plan, device, device_ops(device))
    try:
        for part in parts:
            if time.monotonic() - begin > plan.seconds:
                record.found["note"] = f"no time was left for {part} and what follows it"
                break
            since = time.monotonic()
            if part in OF_KERNELS:
                rows = list(OF_KERNELS[part](bench, tell))
            else:
                assert weights is not None and cpu is not None
                sides = sides or _sides(bench, weights, cpu, record.value("copy"), tell)
                rows = list(OF_MODEL[part](sides, tell))
            record.add(part, rows, time.monotonic() - since)
        record.write()
    finally:
        if cpu is not None:
            cpu.stop()


def _cpu_blocks(plan: Plan) -> int:
    sizes = plan.sizes
    decoding = sizes.cpu_sessions * blocks_for(sizes.context + 4 * sizes.steps)
    return max(decoding, blocks_for(sizes.moved + 3 * sizes.carried_on))


def _sides(
    bench: Bench, weights: Weights, cpu: CpuSide, copy_gb_per_s: float | None, tell: Tell
) -> Sides:
    """The stand-in in VRAM too."""
    sizes, device = bench.plan.sizes, bench.device
    tell("uploading the weights")
    weights.place(device)
    layers = architecture_of(weights.config.architecture).layers(weights)
    rows = max(sizes.sessions)
    plain = Decoder(
        weights,
        layers,
        bench.ops,
        max_step_tokens=max(sizes.step_tokens, rows),
        max_logit_rows=rows,
    )
    model = OnDevice(plain, device, max_step_tokens=max(sizes.step_tokens, rows), max_batch=rows)
    decoding = rows * blocks_for(sizes.context + 4 * sizes.steps)
    moving = 2 * blocks_for(sizes.moved + 3 * sizes.carried_on)
    blocks = max(decoding, moving, blocks_for(max(sizes.prefills)))
    values = np.random.default_rng(0).standard_normal(1 << 16, np.float32).astype(np.float16)
    kv = KvArena(bench.filled(kv_shape_of(weights.config, blocks), values))
    conv, delta = state_shapes_of(weights.config, max(2, rows))
    zeros = np.zeros(1 << 16, np.float32)
    state = StateArena(bench.filled(conv, zeros), bench.filled(delta, zeros))
    return Sides(bench, Seat(model, bench.ops, device, kv, state), cpu, weights, copy_gb_per_s)


def main(out: str, seconds: str, threads: str, kind: str, parts: str) -> int:
    """1 when there is no GPU, or it fails; what was measured before is in OUT."""
    is_rehearsal = kind == "rehearsal"
    chosen = tuple(part for part in PARTS if part in parts.split(","))
    sizes = REHEARSAL if is_rehearsal else REAL
    plan = Plan(sizes, chosen, Path(out), float(seconds), int(threads), is_rehearsal)
    try:
        measure(plan, lambda what: print(what, file=sys.stderr, flush=True))
    except DeviceError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
