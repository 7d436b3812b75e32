"""Each router looks at one other node a second: does somebody serve what waits there?

A pool that reports free places while the head of its queue stays where it is serves nobody,
whatever it says; nor does one that is away while its node lives. After DOUBT_S it is named in the
log, and what waits there is taken over like that of a node that is gone (adopting.py). So a node
that lies about its load, hangs, or has lost its pools keeps nothing that waits.
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

DOUBT_S: Final = 10.0  # of free places beside a queue that does not move, or of no pool beside it
LOST: Final = ("absent", "failed")  # as good as no report

log = logger("router")


@dataclass(frozen=True, slots=True)
class Idle:
    """A pool that does not serve what waits at the front of its queue, and since when.

    head: "": there is no pool
    """

    head: str
    since_s: float


class Audit:
    """One router's.

    stuck    pools that do not serve what waits for them just now, and why, in words
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self.stuck: dict[str, str] = {}
        self._idle: dict[str, Idle] = {}
        self._names: Iterator[str] = iter(())
        self._num_names = 0

    @property
    def doubted(self) -> frozenset[str]:
        """Nodes with such pools."""
        return frozenset(map(node_of, self.stuck))

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
        """Of a node: which of its pools leave what waits for them."""
        for pool in pools_of(name):
            why = self.why_stuck(pool, now_s)
            if why and pool not in self.stuck:
                log.warning("does not serve what waits for it", pool=pool, reason=why)
            if why:
                self.stuck[pool] = why
            else:
                self.stuck.pop(pool, None)

    def why_stuck(self, pool: str, now_s: float) -> str:
        """In words; "": it serves what waits, nothing does, or it is too early to say."""
        keys = self.store.keys
        with self.store.redis.pipeline(transaction=False) as pipeline:
            pipeline.lindex(keys.queue(pool), 0)
            pipeline.zcard(keys.wip(pool))
            pipeline.exists(keys.rq_suspended)
            head, leased, suspended = pipeline.execute()
        has_work = not suspended and (head is not None or leased > 0)
        loads = [one for one in self.store.loads(node_of(pool)) if one.pool == pool and has_work]
        is_lost = has_work and all(load.state in LOST for load in loads)
        if not is_lost and (head is None or not any(map(has_room, loads))):
            self._idle.pop(pool, None)
            return ""
        told = "" if is_lost else head.decode()
        before = self._idle.get(pool)
        if before is None or before.head != told:
            before = self._idle[pool] = Idle(told, now_s)
        if now_s - before.since_s < DOUBT_S:
            return ""
        return f"{pool} is away" if is_lost else f"{pool} has room and claims nothing"


def has_room(load: PoolLoad) -> bool:
    """Whether a pool says that it is ready and has places, and memory that nobody waits for."""
    return load.state == "ready" and load.running < load.capacity and not load.waiting_blocks
