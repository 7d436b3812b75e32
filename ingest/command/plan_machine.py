"""This machine as `lockstep plan` needs it: an engine runs a few seconds on each processor.

What steps cost is what the engine itself learns of them (workers/engine/cost.py); memory is what a
pool would take by the settings; files are taken to be as fast as where they were measured.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from ingest.command.failure import Failure
from ingest.command.local_engine import Processor, local_engine, model_folder
from router.simulator.hardware import BLOCK_TOKENS, Hardware, PoolHardware
from workers.cost import CostModel
from workers.engine.engine import Engine
from workers.engine.limits import EngineLimits, block_bytes, blocks_for, limits_of, state_bytes
from workers.model.config import ModelConfig
from workers.settings import settings
from workers.wire import Request, SamplingParams

READ_BYTES_PER_S: Final = 5.6e9  # tests/bench/RESULTS.md, sessions: from the page cache, checked
WRITE_BYTES_PER_S: Final = 1.4e9
CHUNK: Final = 128  # prefill tokens of a step
CROWDS: Final = ((1, 64), (4, 64), (8, 512), (1, 1024), (2, 64), (8, 64))  # how many, how long
DECODES: Final = 12  # tokens of each
MOST: Final = 8


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
    longest = min(shape.context_length, max(tokens for _, tokens in CROWDS) + DECODES)
    num_blocks = MOST * blocks_for(longest)
    processor = Processor(pool, settings().num_threads, CHUNK)
    try:
        engine = local_engine(folder, processor, max_batch=MOST, num_blocks=num_blocks)
    except Failure:
        if pool == "cpu":
            raise
        return None
    for crowd, (count, tokens) in enumerate(CROWDS):
        play(engine, requests(crowd, count, min(tokens, longest - DECODES)))
    cost = engine.load().cost
    assert cost is not None, "an engine says what its steps cost"
    return CostModel(
        fixed_ms=cost.fixed_ms,
        decode_ms=cost.decode_ms,
        prefill_ms=cost.prefill_ms,
        context_us=cost.context_us,
        prefill_context_us=cost.prefill_context_us,
        kv_bytes_per_token=block_bytes(shape) // BLOCK_TOKENS,
        state_bytes=state_bytes(shape),
        read_bytes_per_s=READ_BYTES_PER_S,
        write_bytes_per_s=WRITE_BYTES_PER_S,
        error=cost.error,
        samples=cost.samples,
    )


def play(engine: Engine, wanted: Iterable[Request]) -> None:
    """All at once, to their ends."""
    for request in wanted:
        engine.add(request)
    while engine.has_work():
        engine.step()


def requests(crowd: int, count: int, tokens: int) -> list[Request]:
    return [
        Request(
            id=f"plan-{crowd}-{index}",
            model="",
            token_ids=tuple(5 + (index * 31 + place) % 50 for place in range(tokens)),
            arrival_ms=0,
            params=SamplingParams(max_tokens=DECODES, temperature=0.0, seed=0),
        )
        for index in range(count)
    ]
