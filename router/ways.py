"""The ways to run a request: on which pool, in which phases, and what would come of each.

Pure. Which one it is, placement.py decides.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from router.balance import cost_of
from router.burden import DECODE, PREFILL, WHOLE, burden_ms, has_room, keeps_pace
from router.forecast import Forecast, between_ends_ms, empty_ttft_ms, forecast
from router.pools import PoolView, Wanted
from workers.sla import SlaTable

HANDOFF_LEAST: Final = 0.15  # of the request, that the fast pool is relieved of; else it is whole
HANDOFF_WORTH: Final = 0.8  # of what it takes off the fast pool: it is a move, too


@dataclass(frozen=True, slots=True)
class Way:
    """One way to run a request, and what it would come to.

    strain   the largest part of a promise that it takes: up to 1 all are kept
    relief   what it takes off the fast pool, for a ms of the other's; of that pool itself 0
    """

    pool: PoolView
    then: PoolView | None
    forecast: Forecast
    strain: float
    has_room: bool
    relief: float = 0.0


def ways_of(
    wanted: Wanted,
    home: str | None,
    fitting: Sequence[PoolView],
    table: SlaTable,
    now_ms: int,
    backlog: Mapping[str, int],
    *,
    handoff: bool,
    displaces: bool,
    tiers: bool = True,
) -> list[Way]:
    """The fastest pool first; then the others, whole and, where it may be, after a handoff.

    handoff, displaces, tiers: mechanisms (placement.py : Switches)
    """
    shares = shares_of(wanted, fitting, table) if backlog else {}
    told = {
        pool.name: forecast(
            wanted if tiers or pool.name == home else replace(wanted, kept_tokens=0),
            pool,
            table,
            warm=pool.name == home,
            displaces=displaces,
            backlog={sla: count * shares[pool.name] for sla, count in backlog.items()},
        )
        for pool in fitting
    }
    fast = min(fitting, key=lambda pool: idle_ms(wanted, pool))
    whole_ms = burden_ms(wanted, fast)
    ways = []
    for pool in sorted(fitting, key=lambda pool: pool is not fast):
        room = has_room(wanted, pool, table, displaces=displaces)
        room = room and (pool is fast or keeps_pace(wanted, pool, table))
        relief = 0.0 if pool is fast else whole_ms / max(burden_ms(wanted, pool, WHOLE), 1e-6)
        expected = told[pool.name]
        ways.append(
            Way(pool, None, expected, strain(wanted, expected, table, now_ms), room, relief)
        )
        if pool is not fast and handoff and tiers:
            both = handed_over(wanted, fast, told[fast.name], pool, expected)
            gain_ms = whole_ms - burden_ms(wanted, fast, PREFILL)
            relief = HANDOFF_WORTH * gain_ms / max(burden_ms(wanted, pool, DECODE), 1e-6)
            if gain_ms < HANDOFF_LEAST * whole_ms:
                relief = 0.0
            room_of_both = room and has_room(wanted, fast, table, displaces=displaces)
            strained = strain(wanted, both, table, now_ms)
            ways.append(Way(fast, pool, both, strained, room_of_both, relief))
    return ways


def shares_of(wanted: Wanted, pools: Sequence[PoolView], table: SlaTable) -> dict[str, float]:
    """Which part of what waits each pool will take, by the rates at which requests end there."""
    rates = {pool.name: 1 / max(between_ends_ms(wanted, pool, table), 1e-6) for pool in pools}
    total = sum(rates.values())
    return {name: rate / total for name, rate in rates.items()}


def idle_ms(wanted: Wanted, pool: PoolView) -> float:
    """All of the request, if the pool had nothing else to do."""
    cost = cost_of(pool)
    return empty_ttft_ms(wanted, pool) + pool.output_of(wanted) * cost.step_ms(
        1, wanted.prompt_tokens
    )


def handed_over(
    wanted: Wanted, first: PoolView, told: Forecast, then: PoolView, other: Forecast
) -> Forecast:
    """Prefilled by one pool, decoded by the other: the move counts as decoding."""
    output = then.output_of(wanted)
    move_ms = cost_of(first).move_ms(wanted.prompt_tokens, cost_of(then))
    move_ms += other.tpot_ms  # it joins when the step that is under way has ended
    decode_ms = move_ms + other.tpot_ms * (output - 1)
    tpot_ms = decode_ms / max(1.0, output - 1)
    return Forecast(told.wait_ms, told.ttft_ms, tpot_ms, told.ttft_ms + decode_ms)


def strain(wanted: Wanted, told: Forecast, table: SlaTable, now_ms: int) -> float:
    """The largest part of a promise that this takes; 0.0 where nothing is promised."""
    sla, since_ms = table[wanted.sla], max(0, now_ms - wanted.arrival_ms)
    parts = [0.0]
    if sla.ttft_ms and not wanted.output_tokens:
        parts.append((since_ms + told.ttft_ms) / sla.ttft_ms)
    if sla.tpot_ms:
        parts.append(told.tpot_ms / sla.tpot_ms)
    if sla.deadline_ms:
        parts.append((since_ms + told.end_ms) / sla.deadline_ms)
    if wanted.deadline_ms is not None:
        allowed_ms = max(1, wanted.deadline_ms - wanted.arrival_ms)
        parts.append((since_ms + told.end_ms) / allowed_ms)
    return max(parts)
