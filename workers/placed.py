"""What is in the pools: each request that waits in a queue or runs, as placement looks at it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from workers.store import Store
from workers.wire_fields import parse_job

PLACED_FIELDS: Final = (  # sla first: it is there when anything is
    *("sla", "arrival_ms", "prompt_tokens", "max_tokens", "deadline_ms", "session_id"),
    *("then_pool", "moved_ms"),
)


@dataclass(frozen=True, slots=True)
class Placed:
    """A request that is in a pool: what placement wants to know of it.

    running        claimed; False: it waits in the pool's queue
    prompt_tokens  0: of a session's request whose prompt is not composed yet
    output_tokens  in its journal
    then_pool      the pool that decodes after the prefill; None: the same
    moved_ms       Unix time at which it last changed its pool; 0: never
    """

    request_id: str
    pool: str
    running: bool
    sla: str
    arrival_ms: int
    prompt_tokens: int
    max_tokens: int
    deadline_ms: int | None
    output_tokens: int
    session_id: str | None
    then_pool: str | None
    moved_ms: int


def placed(store: Store, at_most: int = 256, pools: Sequence[str] = ()) -> list[Placed]:
    """What is in the pools: queues as they will be claimed, then what runs; so many of each.

    pools: (): this node's

    Two round trips; what ends between them is left out.
    """
    pools = pools or store.keys.own_pools
    with store.redis.pipeline(transaction=False) as pipeline:
        for pool in pools:
            pipeline.lrange(store.keys.queue(pool), 0, at_most - 1)
            pipeline.zrange(store.keys.wip(pool), 0, at_most - 1)
        found = pipeline.execute()
    queued, leased = found[::2], found[1::2]
    where = [(pool, False, item) for pool, ids in zip(pools, queued, strict=True) for item in ids]
    for pool, members in zip(pools, leased, strict=True):
        where += [(pool, True, member.rpartition(b":")[0]) for member in members]
    names = [(pool, running, item.decode()) for pool, running, item in where]
    with store.redis.pipeline(transaction=False) as pipeline:
        for _, _, request_id in names:
            pipeline.hmget(store.keys.job(request_id), PLACED_FIELDS)
            pipeline.xlen(store.keys.tokens(request_id))
        facts = pipeline.execute()
    told = zip(names, facts[::2], facts[1::2], strict=True)
    return [placed_of(*name, values, output) for name, values, output in told if values[0]]


def placed_of(
    pool: str, running: bool, request_id: str, values: list[bytes | None], output_tokens: int
) -> Placed:
    """values: as PLACED_FIELDS."""
    job = parse_job({k.encode(): v for k, v in zip(PLACED_FIELDS, values, strict=True) if v})
    return Placed(
        request_id=request_id,
        pool=pool,
        running=running,
        sla=job["sla"],
        arrival_ms=job.get("arrival_ms", 0),
        prompt_tokens=job.get("prompt_tokens", 0),
        max_tokens=job.get("max_tokens", 0),
        deadline_ms=job.get("deadline_ms"),
        output_tokens=output_tokens,
        session_id=job.get("session_id"),
        then_pool=job.get("then_pool"),
        moved_ms=job.get("moved_ms", 0),
    )
