"""An engine of one's own, for commands that compute without a node: the same step as the pools'."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from ingest.command.failure import USAGE, Failure
from kernels.ops import Ops
from workers.engine.engine import Engine
from workers.engine.limits import EngineLimits
from workers.engine.tokens import OnLogits
from workers.model import catalog
from workers.model.build import load_model
from workers.model.config import BadModel
from workers.settings import settings
from workers.text.text_model import TextModel

POOLS: Final = ("cpu", "gpu", "reference")
NO_BUDGET_MS: Final = 1  # not looked at: the chunk is fixed


@dataclass(frozen=True, slots=True)
class Processor:
    """What computes.

    pool     one of POOLS
    threads  of the cpu
    chunk    prefill tokens of a step
    """

    pool: str
    threads: int
    chunk: int


@contextmanager
def model_folder(model: str, home: Path) -> Iterator[Path]:
    """The folder of a model by name, or of a GGUF file, packed for this command alone.

    Raises Failure.
    """
    try:
        if not (model.endswith(".gguf") or "/" in model):
            yield catalog.ensure(home, model, progress=None)
            return
        home.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=".eval-", dir=home) as aside:
            yield catalog.add(Path(model), "model", Path(aside), progress=None)
    except BadModel as error:
        raise Failure(str(error)) from error


def ops_of(processor: Processor) -> Ops:
    """Its arithmetic. Raises Failure."""
    if processor.pool == "cpu":
        from kernels.cpu.host import CpuOps

        return CpuOps(processor.threads)
    if processor.pool == "reference":
        from kernels.reference import ReferenceOps

        return ReferenceOps()
    if processor.pool == "gpu":
        return gpu_ops()
    raise Failure(f"--pool must be one of {', '.join(POOLS)}, not {processor.pool!r}", USAGE)


def gpu_ops() -> Ops:
    """The GPU's kernels, emulated where LOCKSTEP_GPU says so. Raises Failure."""
    from kernels.cuda.emulate.build import NoCompiler
    from kernels.cuda.emulate.host import emulated_ops

    if settings().gpu != "emulate":
        raise Failure("no GPU that can be used: --pool cpu, or LOCKSTEP_GPU=emulate", USAGE)
    try:
        return emulated_ops()
    except NoCompiler as error:
        raise Failure(f"the GPU cannot be emulated: {error}") from error


def local_engine(
    folder: Path,
    processor: Processor,
    *,
    max_batch: int,
    num_blocks: int,
    on_logits: OnLogits | None = None,
) -> Engine:
    """An engine over the model in folder. Raises Failure."""
    ops = ops_of(processor)
    step_tokens = processor.chunk + max_batch
    rows = step_tokens if on_logits else max_batch
    model = load_model(folder, ops, max_step_tokens=step_tokens, max_logit_rows=rows)
    return Engine(
        model,
        TextModel.load(folder),
        ops,
        EngineLimits(max_batch, step_tokens, NO_BUDGET_MS, num_blocks, processor.chunk),
        after_layer=let_run,
        now_ms=now_ms,
        on_logits=on_logits,
    )


def let_run() -> None:
    """Called after each layer: nobody waits for this process."""


def now_ms() -> int:
    return time.time_ns() // 1_000_000
