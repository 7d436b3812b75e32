"""Law one across processors: logits of every architecture, fresh random tokens, bit by bit.

Outputs are poisoned by what the steps before left there; prompts come whole, cut and side by side,
so that every kernel has its turn. The ops alone are compared by `make test-gpu`.
"""

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import numpy as np

from ingest.command.bench.gpu.bench import Bench
from ingest.command.bench.gpu.plan import Row, Tell
from ingest.command.bench.gpu.seat import Seat
from ingest.command.bench.gpu.steps import Layout
from kernels.arrays import HOST, Arrays
from kernels.cpu.host import CpuOps
from kernels.ops import F32, KvArena, Ops, StateArena
from workers.engine.limits import kv_shape_of
from workers.model import catalog
from workers.model.build import Model, load_model
from workers.model.on_device import OnDevice

CHUNKS: Final = (70, 9, 1, 1, 1, 3, 1)  # a prompt's steps, over and over
ROWS: Final = 80


def exact_rows(bench: Bench, tell: Tell) -> Iterator[Row]:
    """Of the tiny models of tests/golden, where they are."""
    golden = Path(__file__).parents[4] / "tests" / "golden"
    with TemporaryDirectory() as home:
        for path in sorted(golden.glob(bench.plan.sizes.exact_models)):
            name = path.name.split(".")[0]
            tell(f"logits of {name}")
            folder = catalog.add(path, name, Path(home), progress=None)
            yield {"model": name, "unit": "differing", **_compare(bench, folder)}


def _compare(bench: Bench, folder: Path) -> Row:
    ops, device = CpuOps(bench.plan.threads), bench.device
    here = _seat(_loaded(folder, ops, HOST), ops, HOST)
    model = OnDevice(
        _loaded(folder, bench.ops, device), device, max_step_tokens=ROWS, max_batch=ROWS
    )
    there = _seat(model, bench.ops, device)
    random = np.random.default_rng()
    length, wanted, differing, compared, position = sum(CHUNKS), here.config.vocab_size, 0, 0, 0
    while compared < bench.plan.sizes.exact_logits:
        for count in CHUNKS:
            token_ids = random.integers(0, wanted, count).tolist()
            mine, theirs = (_logits(seat, token_ids, position) for seat in (here, there))
            differing += int(np.count_nonzero(mine.view(np.uint32) != theirs.view(np.uint32)))
            compared += mine.size
            position += count
        if position + length > min(here.config.context_length, 2 * 256):
            position = 0
    return {"ours": differing, "compared": compared}


def _loaded(folder: Path, ops: Ops, arrays: Arrays) -> Model:
    return load_model(folder, ops, max_step_tokens=ROWS, max_logit_rows=ROWS, arrays=arrays)


def _seat(model: Model, ops: Ops, arrays: Arrays) -> Seat:
    """One sequence of two blocks."""
    config = model.config
    kv = arrays.reserve(kv_shape_of(config, 2), np.float16)
    empty = arrays.reserve((1, 1), np.float32)
    state = StateArena(empty, empty)
    if config.state is not None:
        conv = arrays.reserve(tuple(config.state.conv(1)), np.float32)
        delta = arrays.reserve(tuple(config.state.delta(1)), np.float32)
        state = StateArena(conv, delta)
    return Seat(model, ops, arrays, KvArena(kv), state)


def _logits(seat: Seat, token_ids: list[int], position: int) -> F32:
    """All of a step's, in RAM."""
    step = Layout(2).every_logit(token_ids, position)
    found: F32 = seat.arrays.read(seat.forward(step))
    return found.copy()
