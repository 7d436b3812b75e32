"""How a pool moves while it is full: how many decode at once, and what passes those who wait.

    a step  |  fixed  |  decodes  |  prefill  |      limit: a promised pace, or the engine's budget
                          n           n times what a request has of prompt for a token it writes

In balance a step computes as many prompt tokens as its decodes' requests bring along; then places
stand empty of decodes, taken by prompts that wait for their turn. What comes of each class is what
came lately, as the pool reports it. Pure.
"""

from collections.abc import Mapping
from typing import Final

from router.pools import PoolView, Wanted
from workers.cost import CostModel
from workers.sla import SlaTable

PASSING_MOST: Final = 0.9  # of a pool's time: who waits is served some day


def passing(wanted: Wanted, pool: PoolView, table: SlaTable) -> float:
    """The part of the pool's time that goes to what comes later and is more urgent, up to 0.9."""
    level = table.urgency[table[wanted.sla].name]
    prompts = above(level, pool.prompts_per_s, table)
    outputs = above(level, pool.outputs_per_s, table)
    cost, together = cost_of(pool), balanced(wanted, pool, table)
    step_ms = cost.step_ms(together, together * context_of_one(wanted, pool))
    return min(PASSING_MOST, (prompts * cost.token_ms(0) + outputs * step_ms / together) / 1000)


def above(level: int, rates: Mapping[str, float], table: SlaTable) -> float:
    """Of rates by class those of classes more urgent than a level, together."""
    return sum(rate for sla, rate in rates.items() if table.urgency[table[sla].name] < level)


def balanced(wanted: Wanted, pool: PoolView, table: SlaTable) -> float:
    """How many sequences decode at once while the pool is full.

    As many as it holds; fewer where prompts come faster than such steps have room for them: then
    so many that a step computes as many prompt tokens as its decodes' requests bring along.
    """
    cost, most = cost_of(pool), max(1.0, min(pool.places, max(pool.running, 1)))
    if pool.total_blocks:
        most = max(1.0, min(most, pool.total_blocks / blocks_of_one(pool)))
    written = sum(pool.outputs_per_s.values())
    if not written:
        return most
    each = context_of_one(wanted, pool)
    limit_ms = min(cost.safe_ms(tightest(wanted, pool, table)), budget_of(pool))
    prompt_ms = sum(pool.prompts_per_s.values()) / written * cost.token_ms(each / 2)
    one_ms = cost.step_ms(1, each) - cost.fixed_ms + prompt_ms
    return max(1.0, min(most, (limit_ms - cost.fixed_ms) / max(one_ms, 1e-6)))


def tightest(wanted: Wanted, pool: PoolView, table: SlaTable) -> float:
    """The smallest promise per token, ms, of what runs there and of this."""
    return min(pace_promised(sla, table) for sla in (*pool.by_class, wanted.sla))


def pace_promised(sla: str, table: SlaTable) -> float:
    """ms per token that a class promises; infinite: nothing."""
    promised = table[sla].tpot_ms
    return float("inf") if promised is None else float(promised)


def budget_of(pool: PoolView) -> float:
    """ms that the pool's engine gives a step; infinite: it has not said so."""
    return pool.budget_ms or float("inf")


def blocks_of_one(pool: PoolView) -> float:
    """KV blocks that a running sequence holds here, on average."""
    used = pool.total_blocks - pool.free_blocks
    return max(1.0, used / pool.running) if pool.running else 1.0


def context_of_one(wanted: Wanted, pool: PoolView) -> float:
    """Positions that a decode reads here, on average."""
    return pool.context_tokens / pool.decoding if pool.decoding else wanted.prompt_tokens


def cost_of(pool: PoolView) -> CostModel:
    """The cost model of a pool that reports one."""
    assert pool.cost is not None, pool.name
    return pool.cost
