"""Each router looks at one other node a second: does somebody serve what waits there?

A pool that reports free places while the head of its queue stays where it is serves nobody,
whatever it says; nor does one that is away while its node lives. After DOUBT_S it is named in the
log, and what waits there is taken over like that of a node that is gone (adopting.py). So a node
that lies about its load, hangs, or has lost its pools keeps nothing that waits.
"""

import time
from dataclasses import dataclass
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
        self._names: list[str] = []  # of this round, those that are left

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
        if not self._names:
            found = [one.report.node for one in nodes(self.store)]
            self._names = [name for name in found if name and name != self.store.keys.node]
        return self._names.pop(0) if self._names else None

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
        head = self.left_head(pool)
        if head is None:
            self._idle.pop(pool, None)
            return ""
        before = self._idle.get(pool)
        if before is None or before.head != head:
            before = self._idle[pool] = Idle(head, now_s)
        if now_s - before.since_s < DOUBT_S:
            return ""
        return f"{pool} has room and claims nothing" if head else f"{pool} is away"

    def left_head(self, pool: str) -> str | None:
        """What it leaves at the front of its queue; "": it is away; None: it serves what waits."""
        keys = self.store.keys
        with self.store.redis.pipeline(transaction=False) as pipeline:
            pipeline.lindex(keys.queue(pool), 0)
            pipeline.zcard(keys.wip(pool))
            pipeline.exists(keys.rq_suspended)
            head, leased, suspended = pipeline.execute()
        if suspended or (head is None and not leased):
            return None
        loads = [load for load in self.store.loads(node_of(pool)) if load.pool == pool]
        if all(load.state in LOST for load in loads):
            return ""
        return head.decode() if head is not None and any(map(has_room, loads)) else None


def has_room(load: PoolLoad) -> bool:
    """Whether a pool says that it is ready and has places, and memory that nobody waits for."""
    return load.state == "ready" and load.running < load.capacity and not load.waiting_blocks
