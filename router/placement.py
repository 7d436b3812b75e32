"""Where a request runs, in which phases, and why: a pure function, and the one place that decides.

Until a pool reports what its steps cost: the session's home, else the gpu pool, else the cpu pool.
With costs: by what is predicted for each way of running it, against what its class promises.

A request that fits some ready pool always gets a plan; how good the predictions are decides how
good it is, never whether there is one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from router.pools import BLOCK_TOKENS, PoolView, Wanted
from workers.sla import SlaTable
from workers.wire import POOLS


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

    kind     "gpu", "cpu": whole on that pool; "gpu+cpu", "cpu+gpu": prefill on the first, decode on
             the second; "wait": held, and asked again; "refuse": not run
    pool     whose queue it goes into; "" when it waits or is refused
    then     the pool that goes on after the first token; None: the same
    reason   a sentence for a person
    wait_ms, ttft_ms, tpot_ms   predicted, from now; None: nothing is
    forever  of "refuse": True: never on this node as it is; False: it is too much just now
    """

    kind: str
    pool: str
    reason: str
    then: str | None = None
    wait_ms: float | None = None
    ttft_ms: float | None = None
    tpot_ms: float | None = None
    forever: bool = False


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
    backlog  requests of each class that wait in the streams before it (at the front door)
    """
    ready = [pool for pool in pools if pool.is_ready]
    if not ready:
        states = ", ".join(f"{pool.name} {pool.state}" for pool in pools) or "no pool reports"
        return Plan("wait", "", f"no pool is ready ({states})")
    fitting = [pool for pool in ready if pool.holds(wanted.num_tokens)]
    if not fitting:
        return Plan("refuse", "", too_large(wanted, ready), forever=True)
    return by_preference(home, fitting, pools)


def by_preference(home: str | None, fitting: Sequence[PoolView], pools: Sequence[PoolView]) -> Plan:
    """Without predictions: home, else the first that holds it."""
    best = next((pool for pool in fitting if pool.name == home), fitting[0])
    return Plan(best.name, best.name, why(best.name, fitting, pools, home))


def why(pool: str, fitting: Sequence[PoolView], pools: Sequence[PoolView], home: str | None) -> str:
    """The reason for the choice, for a person who looks at the job."""
    if pool == home:
        return f"{pool}: keeps the session"
    if home is not None:
        return f"{pool}: ready, {home} keeps the session and {absence(home, pools)}"
    first = pools[0].name if pools else POOLS[0]
    if pool == first:
        return f"{pool}: ready"
    return f"{pool}: ready, {first} {absence(first, pools)}"


def absence(name: str, pools: Sequence[PoolView]) -> str:
    """Why a pool is not the one."""
    state = next((pool.state for pool in pools if pool.name == name), "not reporting")
    return "cannot hold the request" if state == "ready" else f"is {state}"


def too_large(wanted: Wanted, ready: Sequence[PoolView]) -> str:
    most = max(pool.sequence_blocks for pool in ready) * BLOCK_TOKENS
    return (
        f"the request needs memory for {wanted.num_tokens} tokens, and this node holds {most}; "
        "ask for fewer tokens or shorten the prompt"
    )
