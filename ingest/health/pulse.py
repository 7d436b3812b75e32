"""One look at the node's pulse: how much waits where, which pools and routers live, what moves.

The front door refuses by it, /readyz judges by it, /metrics shows it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, cast

from redis.exceptions import ResponseError

from workers.fleet.presence import NodeReport, node_report
from workers.store import Store
from workers.wire import GROUP, PoolLoad

STALL_S: Final = 30.0


@dataclass(frozen=True)
class Vital:
    """One part of the node: how much waits for it, and a marker that changes whenever it moves."""

    waiting: int
    marker: tuple[Any, ...]


@dataclass(frozen=True)
class Pulse:
    """streams: requests that wait for a router, by class; queues: jobs that wait, by pool.

    for_session: requests that wait until an earlier one of their session has ended
    promises: "kept", what was not ("ttft", "tpot", "overloaded", ...), "tokens" of those kept
    node: what this node of a fleet says of itself; None: it is alone, or its router is silent
    """

    streams: dict[str, int]
    queues: dict[str, int]
    loads: list[PoolLoad]
    num_routers: int
    handled: int = 0  # messages by those routers so far
    ends: Mapping[tuple[str, str], int] = field(default_factory=dict)  # by class and status
    for_session: int = 0
    promises: Mapping[tuple[str, str], int] = field(default_factory=dict)  # by class, and what
    placements: Mapping[tuple[str, str], int] = field(default_factory=dict)  # by plan, and why
    refusals: Mapping[str, int] = field(default_factory=dict)  # by code
    node: NodeReport | None = None

    @property
    def share(self) -> float:
        """Of what waits in the streams, what is this node's to do."""
        return 1.0 if self.node is None else self.node.share

    def vitals(self) -> dict[str, Vital]:
        """The router moves when it handles messages; a pool when it computes layers."""
        streams = tuple(self.streams.values())
        vitals = {"router": Vital(sum(streams), (streams, self.handled))}
        for pool, queued in self.queues.items():
            mine = [load for load in self.loads if load.pool == pool]
            busy = sum(load.running + load.waiting for load in mine)
            progress = tuple((load.worker, load.progress) for load in mine)
            vitals[pool] = Vital(queued + busy, progress)
        return vitals


class StallWatch:
    """Remembers, from one look to the next, since when a part has work and does not move."""

    def __init__(self) -> None:
        self.since: dict[str, tuple[Vital, float]] = {}

    def stalled(self, vitals: Mapping[str, Vital], now_s: float) -> list[str]:
        """Parts that had work and did not move for STALL_S, at this look and all looks since."""
        for name, vital in vitals.items():
            before = self.since.setdefault(name, (vital, now_s))[0]
            has_had_work = before.waiting and vital.waiting
            if not has_had_work or before.marker != vital.marker:
                self.since[name] = (vital, now_s)
        return [name for name in vitals if now_s - self.since[name][1] >= STALL_S]


def take_pulse(store: Store) -> Pulse:
    """Reads queue lengths, ends, pools and routers. Raises redis' errors."""
    keys = store.keys
    pipe = store.redis.pipeline(transaction=False)
    for sla in keys.classes:
        pipe.xlen(keys.requests(sla))
    for pool in keys.own_pools:
        pipe.llen(keys.queue(pool))
    pipe.zcard(keys.waiting)
    for counters in (keys.ends, keys.promises, keys.placements, keys.refusals):
        pipe.hgetall(counters)
    *counts, for_session, ends, promises, placements, refusals = pipe.execute()
    handled, is_alone = handled_by_routers(store), not keys.node
    return Pulse(
        streams=dict(zip(keys.classes, counts, strict=False)),
        queues=dict(zip(keys.own_pools, counts[len(keys.classes) :], strict=True)),
        loads=store.loads(),
        num_routers=len(handled),
        handled=sum(handled),
        for_session=for_session,
        ends={class_and_status(name): int(count) for name, count in ends.items()},
        promises={class_and_status(name): int(count) for name, count in promises.items()},
        placements={class_and_status(name): int(count) for name, count in placements.items()},
        refusals={name.decode(): int(count) for name, count in refusals.items()},
        node=None if is_alone else node_report(store, keys.node),
    )


def class_and_status(name: bytes) -> tuple[str, str]:
    sla, _, status = name.decode().partition(" ")
    return sla, status


def handled_by_routers(store: Store) -> list[int]:
    """Messages handled so far, by each router of this node that has just said that it lives."""
    stream = store.keys.requests(store.keys.classes[0])
    try:
        consumers = store.redis.xinfo_consumers(stream, GROUP)
    except ResponseError:  # no router has ever been here
        return []
    prefix = f"{store.keys.node}." if store.keys.node else ""
    found = [consumer["name"].decode() for consumer in consumers]
    names = [store.keys.router(name) for name in found if name.startswith(prefix)]
    told = cast(list[bytes | None], store.redis.mget(names)) if names else []
    return [int(count) for count in told if count is not None]
