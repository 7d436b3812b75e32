"""Which pool runs a request: a pure function of the request and of what the pools report.

The gpu pool when it is ready, else the cpu pool. A pool whose memory can never hold the request
is no choice; a request that no ready pool can ever hold is refused rather than left waiting.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from workers.wire import POOLS, PoolLoad, Request

BLOCK_TOKENS: Final = 256  # token positions of one KV block, as pools count them


@dataclass(frozen=True)
class Route:
    """The pool that will run the request, and why, in words for its status."""

    pool: str
    reason: str


@dataclass(frozen=True)
class NoPool:
    """Nobody can run the request.

    forever  True: no pool of this node ever can; False: it waits until a pool is ready
    """

    reason: str
    forever: bool


def route(request: Request, loads: Sequence[PoolLoad], home: str | None) -> Route | NoPool:
    """The pool for this request.

    loads  what the workers of the pools reported lately, in any order
    home   the pool that keeps the session's state; None: the request belongs to no session
    """
    ready = [load for load in loads if load.state == "ready" and load.model == request.model]
    if not ready:
        states = ", ".join(f"{load.pool} {load.state}" for load in loads) or "no pool reports"
        return NoPool(f"no pool is ready for {request.model} ({states})", forever=False)
    fitting = [load for load in ready if holds(load, request)]
    if not fitting:
        return NoPool(too_large(request, ready), forever=True)
    order = [pool for pool in (home, *POOLS) if pool is not None]
    best = min(fitting, key=lambda load: order.index(load.pool))
    return Route(best.pool, why(best.pool, ready, loads, home))


def why(pool: str, ready: Sequence[PoolLoad], loads: Sequence[PoolLoad], home: str | None) -> str:
    """The reason for the choice, for a person who looks at the job."""
    if pool == home:
        return f"{pool}: keeps the session"
    if home is not None:
        return f"{pool}: ready, {home} keeps the session and {absence(home, ready, loads)}"
    if pool == POOLS[0]:
        return f"{pool}: ready"
    return f"{pool}: ready, {POOLS[0]} {absence(POOLS[0], ready, loads)}"


def absence(pool: str, ready: Sequence[PoolLoad], loads: Sequence[PoolLoad]) -> str:
    """Why a pool is not the one."""
    if any(load.pool == pool for load in ready):
        return "cannot hold the request"
    state = next((load.state for load in loads if load.pool == pool), "not reporting")
    return f"is {state}"


def holds(load: PoolLoad, request: Request) -> bool:
    return num_tokens(request) <= sequence_tokens(load) or not load.total_blocks  # 0: not said yet


def num_tokens(request: Request) -> int:
    """Prompt and output, if all of max_tokens is used."""
    return len(request.token_ids) + request.params.max_tokens


def sequence_tokens(load: PoolLoad) -> int:
    """Tokens of one sequence that the pool's memory holds when nothing else is there."""
    return load.total_blocks * BLOCK_TOKENS


def max_sequence_tokens(loads: Sequence[PoolLoad]) -> int | None:
    """The longest sequence that some ready pool holds; None while none is ready."""
    held = [sequence_tokens(load) for load in loads if load.state == "ready" and load.total_blocks]
    return max(held, default=None)


def too_large(request: Request, ready: Sequence[PoolLoad]) -> str:
    tokens, most = num_tokens(request), max_sequence_tokens(ready)
    return (
        f"the request needs memory for {tokens} tokens, and this node holds {most}; "
        "ask for fewer tokens or shorten the prompt"
    )
