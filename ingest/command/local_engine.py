"""An engine of one's own, for commands that compute without a node: the same step as the pools'."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from ingest.command.failure import USAGE, Failure
from kernels.arrays import DeviceError
from workers import processor as processors
from workers.clock import now_ms
from workers.engine.engine import Engine
from workers.engine.limits import EngineLimits
from workers.engine.tokens import OnLogits
from workers.model import catalog
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


def open_processor(processor: Processor) -> processors.Processor:
    """Its arithmetic, and where its arrays lie. Raises Failure."""
    if processor.pool not in POOLS:
        raise Failure(f"--pool must be one of {', '.join(POOLS)}, not {processor.pool!r}", USAGE)
    if processor.pool == "cpu":
        from kernels.cpu.host import CpuOps

        return processors.Processor(CpuOps(processor.threads))
    if processor.pool == "reference":
        from kernels.reference import ReferenceOps

        return processors.Processor(ReferenceOps())
    hint = "--pool cpu, or LOCKSTEP_GPU=emulate"
    if settings().gpu not in ("auto", "emulate"):
        raise Failure(f"no GPU: LOCKSTEP_GPU is {settings().gpu}: {hint}", USAGE)
    try:
        return processors.open_processor("gpu", settings())
    except DeviceError as error:
        raise Failure(f"no GPU that can be used: {error}: {hint}", USAGE) from error


def local_engine(
    folder: Path,
    processor: Processor,
    *,
    max_batch: int,
    num_blocks: int,
    on_logits: OnLogits | None = None,
) -> Engine:
    """An engine over the model in folder. Raises Failure."""
    opened = open_processor(processor)
    step_tokens = processor.chunk + max_batch
    rows = step_tokens if on_logits else max_batch
    limits = EngineLimits(max_batch, step_tokens, NO_BUDGET_MS, num_blocks, processor.chunk)
    try:
        model = opened.load_model(folder, limits, settings(), max_logit_rows=rows)
        return Engine(
            model,
            TextModel.load(folder),
            opened.ops,
            limits,
            after_layer=let_run,
            now_ms=now_ms,
            on_logits=on_logits,
            arrays=opened.arrays,
        )
    except DeviceError as error:
        raise Failure(str(error)) from error


def let_run() -> None:
    """Called after each layer: nobody waits for this process."""
