"""What is in the pools is looked at again: it moves where that is worth it, or ends when it must.

One router a second does it, whichever comes first.
"""

import time
from typing import Final

from router.replan import replan
from router.sight import Sight
from router.stranded import Stranded
from workers.clock import now_ms
from workers.fleet.presence import who_holds
from workers.log import logger
from workers.sla import SlaTable
from workers.store import Store

REPLAN_EVERY_S: Final = 1.0

log = logger("router")


class Replanner:
    """One router's.   name: the router's"""

    def __init__(self, store: Store, sight: Sight, table: SlaTable, name: str) -> None:
        self.store, self.sight, self.table, self.name = store, sight, table, name
        self.stranded = Stranded()
        self.looked_at = float("-inf")

    def look(self) -> None:
        """Once in a while, and unless another router has just done so."""
        now = time.monotonic()
        if now - self.looked_at < REPLAN_EVERY_S:
            return
        self.looked_at = now
        keys, every_ms = self.store.keys, int(REPLAN_EVERY_S * 900)
        if not self.store.redis.exists(keys.active):
            return  # nothing is in a queue, nothing runs
        if not self.store.redis.set(keys.replanned, self.name, px=every_ms, nx=True):
            return
        self.take_back()
        self.give_up(now)
        self.move()

    def take_back(self) -> None:
        """Of a pool that is not ready nobody looks after what its workers left."""
        for view in self.sight.views():
            if not view.is_ready:
                self.store.reap(view.name)

    def give_up(self, now: float) -> None:
        views, movable = self.sight.views(), self.sight.movable()
        sizes = {job.wanted.request_id: job.wanted.num_tokens for job in movable}
        for request_id, pool, reason in self.stranded.late(views, movable, now):
            if self.fits_elsewhere(sizes[request_id]):
                continue  # that node takes it over when it has room (audit.py)
            if self.store.give_up(request_id, pool, reason):
                log.warning("given up", id=request_id, reason=reason)

    def fits_elsewhere(self, num_tokens: int) -> bool:
        """Whether another node of the fleet holds so much."""
        own = self.store.keys.node
        return bool(own) and any(node != own for node in who_holds(self.store, num_tokens))

    def move(self) -> None:
        for move in replan(self.sight.views(), self.sight.movable(), self.table, now_ms()):
            outcome = self.store.move(move.request_id, move.to_pool, move.reason)
            log.info(outcome, id=move.request_id, to=move.to_pool, reason=move.reason)
