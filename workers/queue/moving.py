"""How a pool's requests leave it for the other pool, between two tokens of theirs.

    move ─► engine.suspend ─► writer: what it has computed ─► emitter: what it has said ─► hand_over
                                                                 the other queue's front ◄──┘

A request with then_pool goes there by itself after its first token, as soon as that pool is ready.
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from redis.exceptions import RedisError

from kernels.ops import BLOCK_TOKENS
from workers.fleet.names import PROCESSORS, processor_of
from workers.log import logger
from workers.placed import placed
from workers.queue.emitter import Emitter, Written
from workers.session.suspended import Suspended
from workers.worker_store import Claimed, WorkerStore

if TYPE_CHECKING:
    from workers.engine.engine import Engine
    from workers.session.writer import Writer


class Mover:
    """release(item), lost(item): it is the other pool's; it was nobody's here any more."""

    def __init__(
        self,
        store: WorkerStore,
        pool: str,
        emitter: Emitter,
        *,
        patiently: Callable[[Callable[[], bool]], bool],
        release: Callable[[Claimed], object],
        lost: Callable[[Claimed], object],
    ) -> None:
        self.store, self.pool, self.emitter = store, pool, emitter
        self.patiently, self.release, self.lost = patiently, release, lost
        self.ready: frozenset[str] = frozenset()  # other pools, as last seen

    def can_move(self, pool: str) -> bool:
        return pool != self.pool and processor_of(pool) in PROCESSORS

    def look(self, items: list[Claimed]) -> None:
        """Which pools are ready, if any of these items is to go to one. From any thread."""
        if any(item.then_pool for item in items):
            loads = self.store.loads()
            self.ready = frozenset(load.pool for load in loads if load.state == "ready")

    def fitting(self, items: list[Claimed], pool: str) -> list[Claimed]:
        """Of these items those that the pool, which is ready, holds when nothing else is there.

        None of them when the store does not answer: the router looks after the others.
        """
        try:
            loads = [load for load in self.store.loads() if load.pool == pool]
            wanted = {p.request_id: p.prompt_tokens + p.max_tokens for p in placed(self.store)}
        except RedisError:
            return []
        blocks = [load.total_blocks for load in loads if load.state == "ready"]
        if not blocks:
            return []
        most = max(blocks) * BLOCK_TOKENS
        return [i for i in items if most == 0 or wanted.get(i.job_id, 0) <= most]  # 0: not said

    def goes_on_elsewhere(self, item: Claimed) -> str | None:
        """The pool that takes it now that it has said its first token."""
        pool = item.then_pool
        return pool if pool is not None and pool in self.ready and self.can_move(pool) else None

    def move(self, item: Claimed, pool: str, engine: "Engine", writer: "Writer") -> bool:
        """What it has computed goes into files, and the other pool goes on. False: it ends here."""
        kept = engine.suspend(item.job_id)
        if kept is None:
            return False
        writer.put(Suspended(kept, then=partial(self.hand_over, item, pool)))
        return True

    def hand_over(self, item: Claimed, pool: str) -> None:
        """Once all that was told of it is written. From any thread."""

        def now() -> None:
            if self.patiently(lambda: self.store.hand_over(self.pool, item, pool)):
                logger(self.pool).info("moved", id=item.job_id, to=pool)
                self.release(item)
            else:
                self.lost(item)

        self.emitter.put(Written(now))
