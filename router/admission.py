"""Whether a request is taken at the door: not when it would wait longer than its class promises.

    promised   |--------------------------|        from arrival to the first token, or to the end
    predicted  |-- wait --|-- compute --|          taken
               |------- wait ------|-- compute --| refused: too late by this much: |--|

What is refused is told when it would be taken: waiting shrinks as time passes, so that is after as
long as it would be too late. What an idle node could not keep either is no reason: such a request
is taken as long as it waits no longer than was promised in all. And a prediction counts less by
what the cost model is wrong by: in doubt a request is taken.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from router.balance import cost_of
from router.forecast import Forecast, empty_ttft_ms, forecast
from router.pools import PoolView, Wanted
from router.ways import Way, handed_over
from workers.sla import SlaTable

DOUBT_MOST: Final = 0.9


@dataclass(frozen=True, slots=True)
class Refusal:
    """way: the one that is the least too late.   retry_ms: until it would be taken, above 0"""

    way: Way
    retry_ms: float


def refusal(wanted: Wanted, ways: Sequence[Way], table: SlaTable, now_ms: int) -> Refusal | None:
    """None: it is taken. A way that keeps no promise even when idle counts only if all are so."""
    able = [way for way in ways if is_able(wanted, way, table)] or ways
    late = [(late_ms(wanted, way, table, now_ms), way) for way in able]
    least_ms, best = min(late, key=lambda pair: pair[0])
    return None if least_ms <= 0 else Refusal(best, least_ms)


def is_able(wanted: Wanted, way: Way, table: SlaTable) -> bool:
    """Whether its pools would keep the times per token and to the first one, had they nothing else
    to do."""
    promise = table[wanted.sla]
    if promise.ttft_ms is not None and empty_ttft_ms(wanted, way.pool) > promise.ttft_ms:
        return False
    tpot_ms = cost_of(way.then or way.pool).step_ms(1, wanted.prompt_tokens)
    return promise.tpot_ms is None or tpot_ms <= promise.tpot_ms


def late_ms(wanted: Wanted, way: Way, table: SlaTable, now_ms: int) -> float:
    """By how much it would break the promise that it breaks most; not above 0: it keeps all."""
    promise, told, idle = table[wanted.sla], hopeful(way), idle_forecast(wanted, way, table)
    since_ms = max(0, now_ms - wanted.arrival_ms)
    parts = [float("-inf")]
    if promise.ttft_ms is not None and not wanted.output_tokens:
        allowed_ms = allowed(promise.ttft_ms, idle.ttft_ms)
        parts.append(since_ms + told.ttft_ms - allowed_ms)
    if promise.tpot_ms is not None:  # some of those that run must end first
        slower_ms = told.tpot_ms - allowed(promise.tpot_ms, idle.tpot_ms)
        parts.append(slower_ms * (way.then or way.pool).output_of(wanted))
    if promise.deadline_ms is not None:
        parts.append(since_ms + told.end_ms - allowed(promise.deadline_ms, idle.end_ms))
    if wanted.deadline_ms is not None:
        own_ms = max(1, wanted.deadline_ms - wanted.arrival_ms)
        parts.append(since_ms + told.end_ms - allowed(own_ms, idle.end_ms))
    return max(parts)


def hopeful(way: Way) -> Forecast:
    """What is predicted, less what the pool's predictions are wrong by lately."""
    error = max(cost_of(pool).error for pool in (way.pool, way.then) if pool is not None)
    sure, told = 1 - min(DOUBT_MOST, error), way.forecast
    return Forecast(
        told.wait_ms * sure, told.ttft_ms * sure, told.tpot_ms * sure, told.end_ms * sure
    )


def idle_forecast(wanted: Wanted, way: Way, table: SlaTable) -> Forecast:
    """The same way, if the node had nothing else to do."""
    first = emptied(way.pool)
    told = forecast(wanted, first, table)
    if way.then is None:
        return told
    then = emptied(way.then)
    return handed_over(wanted, first, told, then, forecast(wanted, then, table))


def emptied(pool: PoolView) -> PoolView:
    """The pool without what runs and waits in it."""
    return PoolView(
        name=pool.name,
        model=pool.model,
        cost=pool.cost,
        places=pool.places,
        free_blocks=pool.total_blocks,
        total_blocks=pool.total_blocks,
        sequence_blocks=pool.sequence_blocks,
        step_tokens=pool.step_tokens,
        output_tokens=pool.output_tokens,
    )


def allowed(promised_ms: float, idle_ms: float) -> float:
    """What is promised; where an idle node takes longer than that, so much more beside it."""
    return promised_ms if idle_ms <= promised_ms else idle_ms + promised_ms
