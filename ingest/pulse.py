"""One look at the node's pulse: how much waits where, which pools and routers live, what moves.

The front door refuses by it, /readyz judges by it, /metrics shows it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

from workers.store import Store
from workers.wire import POOLS, SLA_CLASSES, PoolLoad

STALL_S: Final = 30.0


@dataclass(frozen=True)
class Vital:
    """One part of the node: how much waits for it, and a marker that changes whenever it moves."""

    waiting: int
    marker: tuple[Any, ...]


@dataclass(frozen=True)
class Pulse:
    """streams: requests that wait for a router, by class; queues: jobs that wait, by pool."""

    streams: dict[str, int]
    queues: dict[str, int]
    loads: list[PoolLoad]
    num_routers: int

    def waiting(self, sla: str) -> int:
        """Requests that a new one of this class would queue behind."""
        return self.streams[sla] + sum(self.queues.values())

    def vitals(self) -> dict[str, Vital]:
        """The router moves when its streams change; a pool when it computes layers."""
        streams = tuple(self.streams.values())
        vitals = {"router": Vital(sum(streams), streams)}
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
    """Reads queue lengths, pools and routers. Raises redis' errors."""
    keys = store.keys
    pipe = store.redis.pipeline(transaction=False)
    for sla in SLA_CLASSES:
        pipe.xlen(keys.requests(sla))
    for pool in POOLS:
        pipe.llen(keys.queue(pool))
    counts = cast(list[int], pipe.execute())
    return Pulse(
        streams=dict(zip(SLA_CLASSES, counts, strict=False)),
        queues=dict(zip(POOLS, counts[len(SLA_CLASSES) :], strict=True)),
        loads=store.loads(),
        num_routers=num_routers(store),
    )


def num_routers(store: Store) -> int:
    """Routers that said within the last seconds that they live."""
    return sum(1 for _ in store.redis.scan_iter(match=store.keys.router("*"), count=1000))
