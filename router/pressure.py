"""How much may wait in a class, and what producers are told of it: back-pressure.

    waiting  |■■■■■■■■■■■■■■■■■■■■■■■■|                requests of the class before a new one
    most     |------------------|                     with more, a promise would be broken
                                 ^^^^^^ shed, newest first (overload.py); producers are told to wait

Pure. `most` is what the class may have waiting in all, max_queue, or fewer: as many as a request
like the last ones would be taken behind.
"""

import math
from collections.abc import Callable, Mapping, Sequence

from router.placement import Plan, place
from router.pools import PoolView, Wanted
from workers.sla import SlaTable
from workers.wire import Pressure


def pressure_of(
    typical: Wanted,
    pools: Sequence[PoolView],
    table: SlaTable,
    now_ms: int,
    waiting: Mapping[str, int],
    max_queue: int,
) -> Pressure:
    """Of the class of a typical request that would come now.

    waiting  requests of each class that wait outside of the pools
    """
    sla, count = typical.sla, waiting[typical.sla]

    def behind(number: int) -> Plan:
        return place(typical, None, pools, table, now_ms, backlog={**waiting, sla: number})

    plan, most = behind(count), max_queue
    if is_too_much(plan):
        most = min(most, fewest_refused(behind, count))
    if count < most:
        return Pressure(waiting=count, most=most, wait_ms=plan.wait_ms)
    retry_ms = plan.retry_ms or 0.0
    if most == max_queue and plan.wait_ms is not None:
        retry_ms = max(retry_ms, plan.wait_ms - (behind(most - 1).wait_ms or 0.0))
    return Pressure(waiting=count, most=most, wait_ms=plan.wait_ms, retry_ms=retry_ms)


def shared_pressure(
    typical: Wanted,
    pools: Sequence[PoolView],
    table: SlaTable,
    now_ms: int,
    waiting: Mapping[str, int],
    max_queue: int,
    share: float,
) -> Pressure:
    """The same of a fleet: this node works off so much of what waits, as others do with theirs.

    share  0 to 1, of the fleet's speed
    """
    if share >= 1:
        return pressure_of(typical, pools, table, now_ms, waiting, max_queue)
    mine = of_share(waiting, share)
    own_most = max(1, math.ceil(max_queue * share))
    own = pressure_of(typical, pools, table, now_ms, mine, own_most)
    most = min(max_queue, round(own.most / share))
    count = waiting[typical.sla]
    retry_ms = own.retry_ms if count >= most else 0.0
    return Pressure(waiting=count, most=most, wait_ms=own.wait_ms, retry_ms=retry_ms)


def of_share(waiting: Mapping[str, int], share: float) -> dict[str, int]:
    """What a node has to do of what waits in the streams."""
    return {sla: math.ceil(count * share) for sla, count in waiting.items()}


def is_too_much(plan: Plan) -> bool:
    """Refused for now, not for ever."""
    return plan.kind == "refuse" and not plan.forever


def fewest_refused(behind: Callable[[int], Plan], refused: int) -> int:
    """The smallest number behind which one more is refused; behind `refused` it is."""
    low, high = 0, refused
    while low < high:
        middle = (low + high) // 2
        if is_too_much(behind(middle)):
            high = middle
        else:
            low = middle + 1
    return low
