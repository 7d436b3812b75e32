"""Each router looks at one other node a second: does it claim what it says that it has room for?

A pool that reports free places while the head of its queue stays where it is serves nobody,
whatever it says. After DOUBT_S it is named in the log, and what waits there is taken over like
that of a node that is gone (adopting.py). So a node that lies about its load, or hangs, keeps
nothing that waits.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle
from typing import Final

from workers.fleet.names import node_of, pools_of
from workers.fleet.presence import nodes
from workers.log import logger
from workers.store import Store
from workers.wire import PoolLoad

DOUBT_S: Final = 10.0  # of free places beside a queue that does not move

log = logger("router")


@dataclass(frozen=True, slots=True)
class Idle:
    """A pool with free places, and what waits at the front of its queue since when."""

    head: str
    since_s: float


class Audit:
    """One router's.

    doubted  nodes whose reports are not believed just now
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self.doubted: frozenset[str] = frozenset()
        self._idle: dict[str, Idle] = {}
        self._names: Iterator[str] = iter(())
        self._num_names = 0

    def look(self) -> None:
        """At one other node; asked once a second (adopting.py)."""
        name = self.next_name() if self.store.keys.node else None
        if name is not None:
            self.judge(name, time.monotonic())

    def next_name(self) -> str | None:
        """Each of the others in turn; who they are is looked up once a round."""
        if not self._num_names:
            others = [one.report.node for one in nodes(self.store)]
            others = [name for name in others if name and name != self.store.keys.node]
            self._names, self._num_names = cycle(others), len(others)
        if not self._num_names:
            return None
        self._num_names -= 1
        return next(self._names)

    def judge(self, name: str, now_s: float) -> None:
        """Of a node: whether some pool with room leaves what waits for it."""
        doubted = {pool for pool in pools_of(name) if self.is_stuck(pool, now_s)}
        if doubted and name not in self.doubted:
            log.warning(
                "not believed: it has room and claims nothing", node=name, pools=len(doubted)
            )
        self.doubted = self.doubted - {name} | ({name} if doubted else set())

    def is_stuck(self, pool: str, now_s: float) -> bool:
        with self.store.redis.pipeline(transaction=False) as pipeline:
            pipeline.lindex(self.store.keys.queue(pool), 0)
            pipeline.exists(self.store.keys.rq_suspended)
            head, suspended = pipeline.execute()
        loads = [] if head is None else self.store.loads(node_of(pool))
        if suspended or not any(has_room(load) for load in loads if load.pool == pool):
            self._idle.pop(pool, None)
            return False
        before = self._idle.get(pool)
        if before is None or before.head != head.decode():
            self._idle[pool] = Idle(head.decode(), now_s)
            return False
        return now_s - before.since_s >= DOUBT_S


def has_room(load: PoolLoad) -> bool:
    """Whether a pool says that it is ready and has places, and memory that nobody waits for."""
    return load.state == "ready" and load.running < load.capacity and not load.waiting_blocks
