"""What a pool says of itself each second, out of what its engine and its threads count."""

from collections import Counter
from collections.abc import Iterable, Mapping

import msgspec

from kv_tier.prefix import Sizes
from workers.cost import CostModel
from workers.engine.lately import Lately
from workers.engine.load import EngineLoad
from workers.wire import PoolLoad


def with_files(
    cost: CostModel | None, sizes: Sizes | None, kv: Mapping[str, float]
) -> CostModel | None:
    """What steps cost, with what it costs to bring KV to files and back; kv: the tier's counts."""
    if cost is None or sizes is None:
        return cost
    written_bytes = kv.get("suspended_bytes", 0.0) + kv.get("behind_bytes", 0.0)
    written_s = kv.get("suspended_s", 0.0) + kv.get("behind_s", 0.0)
    return msgspec.structs.replace(
        cost,
        kv_bytes_per_token=sizes.token_bytes,
        state_bytes=sizes.state_bytes,
        write_bytes_per_s=written_bytes / written_s if written_s > 0 else 0.0,
        read_bytes_per_s=kv.get("cache_bytes_per_s", 0.0),  # just written, so in RAM
    )


def with_load(
    told: PoolLoad,
    load: EngineLoad,
    cost: CostModel | None,
    classes: Iterable[str],
    lately: Lately,
    now_ms: float,
) -> PoolLoad:
    """The worker's own words and the engine's.

    classes  of all that is claimed
    now_ms   by any clock, the same each time
    """
    prompts_per_s, outputs_per_s = lately.rates(load.prefilled, now_ms)
    return msgspec.structs.replace(
        told,
        waiting=load.waiting,
        free_blocks=load.free_blocks,
        total_blocks=load.total_blocks,
        tokens_per_s=load.tokens_per_s,
        cost=cost,
        step_tokens=load.step_tokens,
        budget_ms=load.budget_ms,
        decoding=load.decoding,
        context_tokens=load.context_tokens,
        prefill_tokens=sum(load.prefill_by_class.values()),
        prefill_by_class=load.prefill_by_class,
        waiting_blocks=load.waiting_blocks,
        output_tokens=dict(lately.output_tokens),
        by_class=dict(Counter(classes)),
        prompts_per_s=prompts_per_s,
        outputs_per_s=outputs_per_s,
        step_ms=load.step_ms,
        batch=load.batch,
        histograms=load.histograms,
    )
