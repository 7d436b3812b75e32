"""Which classes a fleet's router reads: those whose promises its pools keep, as things are now.

Who waits longest at a stream gets its next message, also a node that could never keep the promise
while a faster one stands idle. So a router leaves a class to the others as long as those are quick
about it; what nobody has taken for PATIENCE_S anybody takes, so that nothing starves.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from router.pools import PoolView, Wanted
from router.ways import ways_of
from workers.clock import now_ms
from workers.sla import SlaTable

PATIENCE_S: Final = 5.0  # of messages that wait, until a node takes them that is not quick enough
JUDGED_EVERY_S: Final = 0.5


class Suits:
    """One router's.   typical: what the next request of a class will be like

    age_s: since the oldest message of a class that no router has read came
    """

    def __init__(
        self,
        table: SlaTable,
        typical: Callable[[str, int], Wanted],
        age_s: Callable[[str], float],
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.table, self.typical, self.age_s, self.clock_s = table, typical, age_s, clock_s
        self._quick: frozenset[str] = frozenset(table.names)
        self._late: frozenset[str] = frozenset()
        self._judged_at = float("-inf")

    def quick(self, views: Sequence[PoolView]) -> frozenset[str]:
        """Classes whose next request would be served here as promised."""
        self.judge(views, {})
        return self._quick

    def all(self, views: Sequence[PoolView], waiting: Mapping[str, int]) -> frozenset[str]:
        """The same, and those that others are late with.   waiting: in each stream"""
        self.judge(views, waiting)
        return self._quick | self._late

    def judge(self, views: Sequence[PoolView], waiting: Mapping[str, int]) -> None:
        now_s = self.clock_s()
        if now_s - self._judged_at < JUDGED_EVERY_S:
            return
        self._judged_at = now_s
        ready = [view for view in views if view.is_ready]
        self._quick = frozenset(sla for sla in self.table.names if self.keeps(sla, ready))
        left = [sla for sla, count in waiting.items() if count and sla not in self._quick]
        self._late = frozenset(sla for sla in left if self.age_s(sla) >= PATIENCE_S)

    def keeps(self, sla: str, ready: Sequence[PoolView]) -> bool:
        """Whether some pool keeps the promise, as far as it says what its steps cost."""
        if not ready or any(view.cost is None for view in ready):
            return bool(ready)
        now = now_ms()
        wanted = self.typical(sla, now)
        ways = ways_of(wanted, None, ready, self.table, now, {}, handoff=True, displaces=True)
        return any(way.strain <= 1 for way in ways)
