"""Where a request runs, in which phases, and why: a pure function, and the one place that decides.

Until a pool reports what its steps cost: the session's home, else the gpu pool, else the cpu pool.
With costs, of the ways to run a request that its class' promises allow:

    the fastest pool while it has plenty of room
    when it fills up: the way that takes most off it for what it costs the other pool:
        whole on the other one, or prefill on the fast one and decode on the other
    nothing that keeps the promise has room: the request waits, unless waiting is what breaks it

A request that fits some ready pool gets a plan, or waits for what is running to end; how good the
predictions are decides how good the plan is, never whether there is one. One that fits only a pool
which is away, and was ready lately, waits for that; what no known pool holds is refused.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from router.admission import Refusal, refusal
from router.balance import cost_of
from router.burden import places_for, pressure
from router.forecast import empty_ttft_ms
from router.pools import BLOCK_TOKENS, PoolView, Wanted
from router.ways import Way, ways_of
from workers.fleet.names import processor_of
from workers.sla import SlaTable

FULL: Final = 0.7  # of a pool: from here on others are asked to take work off it
AWAY_MOST: Final = 64  # requests in the queue of a pool that is away
SAFE: Final = 0.8  # of a promise: a slow pool takes what it can do in so much of it


@dataclass(frozen=True, slots=True)
class Switches:
    """Mechanisms that can be switched off, to see what each is worth.

    routing     pools are chosen by prediction; off: the preferred pool, as long as it is ready
    handoff     one pool prefills, another decodes
    promotion   running requests move between pools
    preemption  urgent requests displace running ones (the engine's; here: it is counted on)
    tiers       KV is kept in files: sessions and moved requests are restored, not computed again
    """

    routing: bool = True
    handoff: bool = True
    promotion: bool = True
    preemption: bool = True
    tiers: bool = True


ALL: Final = Switches()
EMPTY: Final[Mapping[str, int]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Plan:
    """What becomes of a request.

    kind     "gpu", "cpu": whole on that processor; "gpu+cpu", "cpu+gpu": prefill on the first,
             decode on the second; "wait": held, and asked again; "refuse": not run
    pool     whose queue it goes into; "" when it waits or is refused
    then     the pool that goes on after the first token; None: the same
    reason   a sentence for a person; why: its kind, one word, counted in /metrics
    wait_ms, ttft_ms, tpot_ms   predicted, from now; None: nothing is
    forever  of "refuse": True: never on this node as it is; False: it is too much just now
    field    of "refuse": the request's field that asks for too much
    retry_ms  of "refuse", not for ever: from now until it would be taken
    """

    kind: str
    pool: str
    reason: str
    then: str | None = None
    wait_ms: float | None = None
    ttft_ms: float | None = None
    tpot_ms: float | None = None
    forever: bool = False
    field: str = "max_tokens"
    retry_ms: float | None = None
    why: str = ""


def place(
    wanted: Wanted,
    home: str | None,
    pools: Sequence[PoolView],
    table: SlaTable,
    now_ms: int,
    switches: Switches = ALL,
    backlog: Mapping[str, int] = EMPTY,
) -> Plan:
    """The plan for a request that has arrived and is in no queue.

    home     the pool that ran the session's last request; None: it belongs to no session
    pools    each pool once, in order of preference among equals
    backlog  at the front door: requests of each class that wait in the streams. Then a promise that
             cannot be kept is a refusal, with the predicted wait
    """
    ready = [pool for pool in pools if pool.is_ready]
    if not ready:
        states = ", ".join(f"{pool.name} {pool.state}" for pool in pools) or "no pool reports"
        return Plan("wait", "", f"no pool is ready ({states})")
    fitting = [pool for pool in ready if pool.holds(wanted.num_tokens)]
    if not fitting and wanted.gives_way:
        most = max(pool.sequence_blocks for pool in ready)
        fitting = [pool for pool in ready if pool.sequence_blocks == most]
    if not fitting:
        return for_one_away(wanted, pools)
    if any(pool.cost is None for pool in fitting) or not switches.routing:
        return by_preference(wanted, home, fitting, pools, table)
    late = impossible(wanted, fitting, now_ms)
    if late is not None:
        return Plan("refuse", "", late, forever=True, field="deadline_ms")
    ways = ways_of(
        wanted,
        home,
        fitting,
        table,
        now_ms,
        backlog,
        handoff=switches.handoff,
        displaces=switches.preemption,
        tiers=switches.tiers,
    )
    refused = None if backlog is EMPTY else refusal(wanted, ways, table, now_ms)
    if refused is not None:
        return too_late(refused)
    return choose(wanted, ways, table)


def for_one_away(wanted: Wanted, pools: Sequence[PoolView]) -> Plan:
    """No ready pool holds it: it waits for one that did lately, in its queue, or is refused."""
    away = [pool for pool in pools if not pool.is_ready and pool.sequence_blocks]
    fitting = [pool for pool in away if pool.holds(wanted.num_tokens)]
    if not fitting:
        return Plan("refuse", "", too_large(wanted, pools), forever=True)
    pool = fitting[0]
    reason = f"{pool.name}: the only pool that holds it, is {pool.state} and is waited for"
    if len(pool.queue) < AWAY_MOST:
        return Plan(processor_of(pool.name), pool.name, reason)
    return Plan("wait", "", f"{reason}, as {len(pool.queue)} others do")


def by_preference(
    wanted: Wanted,
    home: str | None,
    fitting: Sequence[PoolView],
    pools: Sequence[PoolView],
    table: SlaTable,
) -> Plan:
    """Without predictions: home, else the first that holds it, as long as its queue has room."""
    order = sorted(fitting, key=lambda pool: pool.name != home)
    best = next((pool for pool in order if places_for(wanted.sla, pool, table) > 0), None)
    if best is None:
        return Plan("wait", "", f"waits for room in the queue of {order[0].name}")
    reason = why(best.name, fitting, pools, home)
    is_home = best.name == home
    why_kind = "home" if is_home else "preferred"
    return Plan(processor_of(best.name), best.name, reason, why=why_kind)


def why(pool: str, fitting: Sequence[PoolView], pools: Sequence[PoolView], home: str | None) -> str:
    """The reason for the choice, for a person who looks at the job."""
    if pool == home:
        return f"{pool}: keeps the session"
    if home is not None:
        return f"{pool}: ready, {home} keeps the session and {absence(home, fitting, pools)}"
    first = pools[0].name
    if pool == first:
        return f"{pool}: ready"
    return f"{pool}: ready, {first} {absence(first, fitting, pools)}"


def absence(name: str, fitting: Sequence[PoolView], pools: Sequence[PoolView]) -> str:
    """Why a pool is not the one."""
    if any(pool.name == name for pool in fitting):
        return "has a full queue"
    state = next((pool.state for pool in pools if pool.name == name), "not reporting")
    return "cannot hold the request" if state == "ready" else f"is {state}"


def too_large(wanted: Wanted, pools: Sequence[PoolView]) -> str:
    most = max(pool.sequence_blocks for pool in pools) * BLOCK_TOKENS
    return (
        f"the request needs memory for {wanted.num_tokens} tokens, and this node holds {most}; "
        "ask for fewer tokens or shorten the prompt"
    )


def impossible(wanted: Wanted, fitting: Sequence[PoolView], now_ms: int) -> str | None:
    """Why the request's own deadline cannot be met even by an empty node; None: it may be."""
    if wanted.deadline_ms is None:
        return None
    soonest = min(fitting, key=lambda pool: empty_ttft_ms(wanted, pool))
    doubt = min(0.9, cost_of(soonest).error)
    needed_ms, left_ms = empty_ttft_ms(wanted, soonest) * (1 - doubt), wanted.deadline_ms - now_ms
    if needed_ms <= left_ms:
        return None
    return (
        f"{left_ms} ms are left, and the first token alone takes {shown_ms(needed_ms)} "
        f"on an idle {soonest.name} pool; allow more time or shorten the prompt"
    )


def too_late(refused: Refusal) -> Plan:
    """The door refuses: what the class promises cannot be kept now."""
    told, retry_ms = refused.way.forecast, refused.retry_ms
    reason = (
        f"{refused.way.pool.name}: would begin in {shown_ms(told.wait_ms)}, "
        f"{shown_ms(retry_ms)} later than its class promises"
    )
    return Plan(
        "refuse", "", reason, None, told.wait_ms, told.ttft_ms, told.tpot_ms, retry_ms=retry_ms
    )


def choose(wanted: Wanted, ways: Sequence[Way], table: SlaTable) -> Plan:
    """The way that the page above describes."""
    fast, others = ways[0], ways[1:]
    full = pressure(wanted, fast.pool, table)
    if fast.has_room and full <= FULL and fast.strain <= 1:
        return plan(fast, "has room", "room")
    relieving = [way for way in others if way.has_room and way.strain <= SAFE and way.relief > 0]
    if relieving:
        best = max(relieving, key=lambda way: way.relief)
        because = f"keeps the promise, and {fast.pool.name} is {shown_part(full)} full"
        return plan(best, because, "relief")
    sooner = [way for way in others if way.has_room and is_worth_it(way, fast)]
    if fast.strain > 1 and sooner:
        best = min(sooner, key=lambda way: way.strain)
        return plan(best, f"is sooner than {fast.pool.name}, where much waits", "sooner")
    if fast.has_room:
        if others:
            return plan(fast, "the fastest pool", "fastest")
        return plan(fast, "the only pool that holds it", "only")
    told = fast.forecast
    reason = f"waits for room in {fast.pool.name}, about {shown_ms(told.wait_ms)}"
    return Plan("wait", "", reason, None, told.wait_ms, told.ttft_ms, told.tpot_ms)


def is_worth_it(way: Way, fast: Way) -> bool:
    """Of another way when the fast pool is late: it keeps the promise, or is twice as near to it.

    Where both break it a little, the fast pool may do better than predicted; a slow pace is sure.
    """
    return way.strain < fast.strain and (way.strain <= 1 or 2 * way.strain <= fast.strain)


def plan(way: Way, because: str, kind_of_reason: str) -> Plan:
    """A way as a plan, with a sentence that names the pools and what is predicted."""
    told, name = way.forecast, way.pool.name
    phases = (name,) if way.then is None else (name, way.then.name)
    kind = "+".join(map(processor_of, phases))
    where = name if way.then is None else f"{name}, then {way.then.name}"
    expected = f"first token in {shown_ms(told.ttft_ms)}, then {shown_ms(told.tpot_ms)} a token"
    reason = f"{where}: {because}; {expected}"
    then = None if way.then is None else way.then.name
    times = (told.wait_ms, told.ttft_ms, told.tpot_ms)
    return Plan(kind, name, reason, then, *times, why=kind_of_reason)


def shown_ms(ms: float) -> str:
    """A duration for a person: 12 ms, 3.4 s, 12 min, 8 h."""
    if ms < 1000:
        return f"{ms:.0f} ms"
    if ms < 120_000:
        return f"{ms / 1000:.1f} s"
    return f"{ms / 60_000:.0f} min" if ms < 7_200_000 else f"{ms / 3_600_000:.3g} h"


def shown_part(part: float) -> str:
    return f"{min(part, 9.99):.0%}"
