"""Pictures of a node for tests of placement: the published GPU and CPU, as full as wanted."""

from dataclasses import replace

from router.pools import PoolView, Wanted
from workers.cost import CostModel
from workers.sla import SlaTable

TABLE = SlaTable()
NOW_MS = 1_000_000
BYTES = {"kv_bytes_per_token": 65_536, "read_bytes_per_s": 5.6e9, "write_bytes_per_s": 1.4e9}
GPU_COST = CostModel(
    fixed_ms=24.1,
    decode_ms=0.9,
    prefill_ms=0.43,
    context_us=109.0,
    prefill_context_us=11.0,
    **BYTES,
)
CPU_COST = CostModel(
    fixed_ms=110.0,
    decode_ms=12.0,
    prefill_ms=10.3,
    context_us=480.0,
    prefill_context_us=236.0,
    **BYTES,
)
OUTPUT = {"realtime": 130.0, "standard": 130.0, "batch": 130.0}


def wanted(name="a", sla="standard", prompt=1000, output=400, **fields):
    return Wanted(name, sla, NOW_MS, prompt, output, **fields)


def pool(name, cost, running=0, sla="batch", places=32, blocks=1200, each=6, **fields):
    """With so many running, all of one class, of `each` blocks."""
    used = min(blocks, running * each)
    view = PoolView(
        name,
        cost=cost,
        places=places,
        running=running,
        decoding=running,
        context_tokens=running * 1000,
        total_blocks=blocks,
        free_blocks=blocks - used,
        sequence_blocks=blocks,
        step_tokens=2048,
        output_tokens=OUTPUT,
        by_class={sla: running} if running else {},
    )
    return replace(view, **fields)


def gpu(running=0, **fields):
    return pool("gpu", GPU_COST, running, **fields)


def cpu(running=0, **fields):
    return pool("cpu", CPU_COST, running, **{"blocks": 9000, **fields})
