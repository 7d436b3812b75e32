"""This machine as `lockstep plan` needs it: an engine runs a few seconds on each processor.

What steps cost is measured as a pool does at its start (workers/engine/calibrate.py); memory is
what a pool would take by the settings; files are as fast as where they were measured.
"""

from pathlib import Path
from typing import Final

import msgspec

from ingest.command.failure import Failure
from ingest.command.local_engine import Processor, local_engine, model_folder
from router.simulator.hardware import BLOCK_TOKENS, Hardware, PoolHardware
from workers.cost import CostModel
from workers.engine.calibrate import measure
from workers.engine.cost import learn
from workers.engine.limits import EngineLimits, block_bytes, blocks_for, limits_of, state_bytes
from workers.model.config import ModelConfig
from workers.settings import settings

READ_BYTES_PER_S: Final = 5.6e9  # tests/bench/RESULTS.md, sessions: from the page cache, checked
WRITE_BYTES_PER_S: Final = 1.4e9
CHUNK: Final = 512  # prefill tokens of a step, at most
SEQUENCES: Final = 16  # at once, at most
LONGEST: Final = 2304  # tokens of a measured sequence
BUDGET_MS: Final = 5000.0


def this_machine(model: str) -> Hardware:
    """The CPU, and the GPU if there is one. Raises Failure."""
    config = settings()
    name = model or config.model
    with model_folder(name, config.home) as folder:
        shape = config_of(folder)
        limits = limits_of(config, shape)
        pools = {}
        for pool in ("gpu", "cpu"):
            cost = measured(folder, pool, shape)
            if cost is not None:
                pools[pool] = pool_of(cost, shape, limits, weight_bytes(folder))
    return Hardware(f"this machine, {name}", name, shape.context_length, pools)


def config_of(folder: Path) -> ModelConfig:
    from workers.model.build import PACK
    from workers.model.pack import Weights

    return Weights.open(folder / PACK).config


def weight_bytes(folder: Path) -> int:
    from workers.model.build import PACK

    return (folder / PACK).stat().st_size


def pool_of(
    cost: CostModel, shape: ModelConfig, limits: EngineLimits, weights: int
) -> PoolHardware:
    slots = 0 if shape.state is None else limits.state_slots
    return PoolHardware(
        cost,
        limits.num_blocks,
        block_bytes(shape),
        weights,
        slots,
        limits.max_batch,
        limits.max_step_tokens,
    )


def measured(folder: Path, pool: str, shape: ModelConfig) -> CostModel | None:
    """What steps cost there; None: there is no such processor."""
    processor = Processor(pool, settings().num_threads, CHUNK)
    num_blocks = SEQUENCES + blocks_for(min(shape.context_length, LONGEST))
    try:
        engine = local_engine(folder, processor, max_batch=SEQUENCES, num_blocks=num_blocks)
    except Failure:
        if pool == "cpu":
            raise
        return None
    return msgspec.structs.replace(
        learn(measure(engine, BUDGET_MS)),
        kv_bytes_per_token=block_bytes(shape) // BLOCK_TOKENS,
        state_bytes=state_bytes(shape),
        read_bytes_per_s=READ_BYTES_PER_S,
        write_bytes_per_s=WRITE_BYTES_PER_S,
    )
