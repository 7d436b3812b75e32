"""The thread that keeps leases while work moves, and tidies the queue.

A lease is renewed only when progress has moved since the last time: a hung engine loses its items.
"""

import os
import threading
import time
from collections.abc import Callable, Mapping
from queue import SimpleQueue
from typing import Final

from redis.exceptions import RedisError

from workers.log import logger
from workers.queue.messages import Cancel, Lost, Message, Promote
from workers.queue.pulse import Pulse
from workers.queue.servant import Servant
from workers.worker_store import Claimed, WorkerStore

log = logger("queue")
ROUND_S: Final = 1.0
MAINTENANCE_S: Final = 10.0  # or the time of a lease, when that is shorter
STUCK_LEASES: Final = 4  # a worker that has not moved for so many lease times ends itself
STUCK_EXIT: Final = 75  # EX_TEMPFAIL: its keeper starts it again


class Bookkeeper(Servant):
    """held is read, never changed; into the inbox goes what was lost or cancelled, and the class of
    each other."""

    def __init__(
        self,
        store: WorkerStore,
        queue: str,
        worker: str,
        pulse: Pulse,
        held: Mapping[str, Claimed],
        inbox: "SimpleQueue[Message]",
    ) -> None:
        super().__init__(f"bookkeeper {queue}")
        self.store, self.queue, self.worker, self.pulse = store, queue, worker, pulse
        self.held, self.inbox = held, inbox
        self.beat_s = min(store.lease_s / 3, MAINTENANCE_S)
        self.stopped = threading.Event()
        self.failures = 0
        self.last_moves = -1
        self.moved_at = time.monotonic()

    def plan(
        self,
        *,
        report: Callable[[], None],
        register: Callable[[], None],
        maintain: Callable[[], None],
    ) -> None:
        """What else is done in this thread: every second, when RQ lost us, every ten seconds."""
        self.report, self.register, self.maintain = report, register, maintain

    def stop(self) -> None:
        self.stopped.set()

    def serve(self) -> None:
        beat_at = maintain_at = time.monotonic()
        self.attempt(self.report)  # ready is said at once
        while not self.stopped.wait(min(ROUND_S, self.beat_s)):
            now = time.monotonic()
            self.attempt(self.report)
            if now >= beat_at and self.attempt(self.beat):
                beat_at = now + self.beat_s
            if now >= maintain_at and self.attempt(self.tidy):
                maintain_at = now + min(MAINTENANCE_S, self.store.lease_s)

    def attempt(self, call: Callable[[], None]) -> bool:
        """False when the store did not answer; said once per outage."""
        try:
            call()
        except RedisError as error:
            self.failures += 1
            if self.failures == 3:
                log.warning("the store does not answer", worker=self.worker, error=str(error)[:200])
            return False
        self.failures = 0
        return True

    def beat(self) -> None:
        held = list(self.held.values())
        moves = self.pulse.moves
        moved, self.last_moves = moves != self.last_moves, moves
        reply = self.store.beat(self.queue, self.worker, held if moved else [])
        if not reply.is_known:
            self.register()
        by_id = {item.job_id: item for item in held}
        for job_id in reply.lost:
            self.inbox.put(Lost(by_id[job_id]))
        for job_id in reply.cancelled:
            self.inbox.put(Cancel(job_id))
        for job_id, sla in reply.classes.items():
            self.inbox.put(Promote(job_id, sla))  # whatever was heard of it, and in whatever order
        self.watch(moved or not held)

    def watch(self, moved: bool) -> None:
        """End a process that holds items and has not moved for long: only a new one can go on."""
        now = time.monotonic()
        self.pulse.hanging = not moved
        if moved:
            self.moved_at = now
        elif now - self.moved_at > STUCK_LEASES * self.store.lease_s:
            log.error("stuck: the engine has not moved, ending", worker=self.worker)
            os._exit(STUCK_EXIT)

    def tidy(self) -> None:
        back = self.store.reap(self.queue)
        if back:
            log.warning("took jobs back from silent workers", queue=self.queue, jobs=len(back))
        self.maintain()
