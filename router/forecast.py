"""What would become of a request in a pool: when it starts, its first token, its pace, its end.

Pure, from a PoolView and its cost model. A fluid picture, not a replay: what is ahead takes places
and blocks; places and blocks come free at the rate at which running sequences end; prompts ahead
are computed before ours, in chunks beside the decodes.
"""

from dataclasses import dataclass

from router.pools import PoolView, Wanted
from workers.sla import SlaTable


@dataclass(frozen=True, slots=True)
class Forecast:
    """Milliseconds from now.

    wait_ms  until it has its place and its memory
    ttft_ms  until its first token (of one that has output already: the next one)
    tpot_ms  per token after that
    end_ms   until its end, if it uses as much of max_tokens as others did
    """

    wait_ms: float
    ttft_ms: float
    tpot_ms: float
    end_ms: float


def forecast(wanted: Wanted, pool: PoolView, table: SlaTable) -> Forecast:
    """Of a request that came into this pool's queue now. The pool must report its cost."""
    cost = pool.cost
    assert cost is not None, pool.name
    output = max(1.0, wanted.max_tokens * pool.output_share)
    decodes = min(max(pool.places, 1), pool.decoding + len(pool.queue) + 1)
    context = pool.context_tokens + wanted.prompt_tokens + output / 2
    tpot_ms = cost.step_ms(decodes, context)
    wait_ms = 0.0
    ahead = pool.prefill_tokens + sum(other.uncached for other in pool.queue)
    chunk = max(1, pool.step_tokens)
    prefill_ms = cost.prefill_ms_of(ahead + wanted.uncached, 0, chunk, decodes - 1, context)
    ttft_ms = wait_ms + prefill_ms
    return Forecast(wait_ms, ttft_ms, tpot_ms, ttft_ms + tpot_ms * (output - 1))
