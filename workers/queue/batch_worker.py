"""An RQ worker that runs many jobs at once, and never holds one without a lease.

Registration, state, signals, commands and suspension are RQ's (rq_worker.py); how it gets jobs is
ours: it waits for a ring of the queue's bell, and claims by script, so that nothing is popped but
unleased.

    listener    bell ──claim──► held ──hand_in──► inbox    sleeps while there is no room
    main        inbox ──start──► advance, advance, ...      owns the work; waits for no Redis in it
    bookkeeper  each second: report; beat while progress moves; reap and reconcile now and then
    pubsub      RQ's commands and cancellations ──► inbox

A batch is one "job" to RQ's work(): max_jobs counts batches.

Invariants: an item is in held from its claim until its end is written, it is handed back, or its
lease is lost; the hooks run in the main thread; once stopping is set no claim begins.
"""

import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from types import FrameType
from typing import Any, Final

from redis.exceptions import RedisError
from rq.worker import WorkerStatus

from workers.log import logger
from workers.queue.bookkeeper import Bookkeeper
from workers.queue.listener import Listener
from workers.queue.messages import Cancel, Do, Lost, Message, Move, Promote, Stop, Work
from workers.queue.pulse import Pulse
from workers.queue.rq_worker import RqWorker
from workers.worker_store import NO_MORE, Claimed, WorkerStore

log = logger("queue")
IDLE_WAKE_S: Final = 10.0
LULL_S: Final = 0.1  # so long without work, a worker is not idle yet
BURST_WAKE_S: Final = 0.01
FLUSH_S: Final = 1.0  # what a stopping worker waits for a claim, and for its last results


class BatchWorker(RqWorker):
    """Children say what is done with what is claimed: start, advance, has_work, cancel, drop.

    Hooks run in the main thread, unless they say otherwise.
    """

    def __init__(
        self, store: WorkerStore, queue: str, *, name: str, capacity: int, pulse: Pulse
    ) -> None:
        super().__init__(store, queue, name=name, pulse=pulse)
        self.capacity = capacity
        self.inbox: SimpleQueue[Message] = SimpleQueue()
        self.held: dict[str, Claimed] = {}
        self.burst = self.crashed = False
        self.claiming = threading.Lock()  # claims change held under it
        self.listener = Listener(
            store, queue, pulse, claim=self.claim, has_room=lambda: self.room() > 0
        )
        self.bookkeeper = Bookkeeper(store, queue, name, pulse, self.held, self.inbox)
        self.bookkeeper.plan(
            report=self.report, register=self.register_birth, maintain=self.maintain
        )

    # --- hooks ---

    def prepare(self, item: Claimed) -> Any:
        """What start needs and may wait for the store. Runs in the listener's thread."""
        return None

    def hand_in(self, item: Claimed) -> None:
        """Prepare an item and put it into the inbox; may leave that to another thread."""
        self.inbox.put(Work(item, self.patiently(partial(self.prepare, item))))

    def discard(self, item: Claimed, prepared: Any) -> None:
        """What was prepared is not wanted any more: the item is somebody else's."""

    def start(self, item: Claimed, prepared: Any) -> None:
        """Begin to work on an item."""
        raise NotImplementedError

    def advance(self) -> None:
        """Do a piece of the work. Called again and again while has_work()."""
        raise NotImplementedError

    def has_work(self) -> bool:
        raise NotImplementedError

    def cancel(self, job_id: str) -> None:
        """Somebody wants no more of an item: its end is up to us."""

    def move(self, job_id: str, pool: str) -> None:
        """Another pool shall go on with an item."""

    def promote(self, job_id: str, sla: str) -> None:
        """An item is of another class now. May be told again."""

    def extra_room(self) -> Mapping[str, int]:
        """How many more of a class may be claimed, which displace others. From any thread."""
        return NO_MORE

    def drop(self, job_id: str) -> None:
        """An item is somebody else's now, or nobody's: forget it, write nothing."""

    def stop_job(self, job_id: str) -> None:
        """RQ's stop-job command, in the pubsub thread."""
        self.inbox.put(Cancel(job_id))

    def flush(self, seconds: float) -> None:
        """Before handing back: let what is finished be written."""

    def linger(self) -> None:
        """After handing back: what may still be done in the time that a stop has."""

    def rest(self) -> None:
        """Nothing to do for some seconds."""

    def report(self) -> None:
        """Once a second, in the bookkeeper's thread."""

    def maintain(self) -> None:
        """Every ten seconds, in the bookkeeper's thread, beyond reaping this queue."""

    # --- what RQ's work() calls ---

    def work(self, burst: bool = False, *arguments: Any, **options: Any) -> bool:
        """RQ's work(), with our threads beside it. Gives True when anything was run."""
        self.burst = burst
        if not arguments:
            options.setdefault("logging_level", "WARNING")
        return bool(super().work(burst, *arguments, **options))

    def bootstrap(self, *arguments: Any, **options: Any) -> None:
        back = self.patiently(lambda: self.store.recover(self.queue_name, self.name))
        if back:
            log.info("took up a dead worker's jobs", worker=self.name, jobs=len(back))
        super().bootstrap(*arguments, **options)
        self.bookkeeper.start()
        if not self.burst:
            self.listener.start()

    def handle_control(self, message: Any) -> None:
        """`cancel ID`, `move ID POOL`, `promote ID CLASS`: by the scripts of these names.

        A later version may say more: what is not known here is not for us.
        """
        words: list[str] = [*message["data"].decode(errors="replace").split(" "), "", ""]
        verb, job_id, what = words[:3]
        if job_id not in self.held:
            return
        if verb == "cancel":
            self.inbox.put(Cancel(job_id))
        elif verb == "move" and what:
            self.inbox.put(Move(job_id, what))
        elif verb == "promote" and what:
            self.inbox.put(Promote(job_id, what))

    def request_stop(self, signum: int, frame: FrameType | None) -> None:
        """SIGTERM, SIGINT, RQ's shutdown command: stop within seconds, hand everything back."""
        self._stop_requested = True
        self.pulse.stop()
        self.inbox.put(Stop())

    def dequeue_job_and_maintain_ttl(
        self, timeout: int | None, max_idle_time: int | None = None
    ) -> Any:
        """The next piece of work; None when there is none left to wait for."""
        if timeout is None:  # burst
            self.claim_more()
        idle_since, wake_s = time.monotonic(), BURST_WAKE_S if timeout is None else LULL_S
        while not self._stop_requested:
            message = self.next_message(wake_s)
            if message is None and timeout is not None and wake_s == LULL_S:
                self.set_state(WorkerStatus.IDLE)  # said when it lasts, and then once
                wake_s = IDLE_WAKE_S
                continue
            if isinstance(message, Work):
                return message, self.queues[0]
            if message is None and timeout is None and not self.held:
                return None
            if max_idle_time is not None and time.monotonic() - idle_since >= max_idle_time:
                return None
            if message is not None:
                self.handle(message)
                if self.has_work():
                    return Do(nothing_more), self.queues[0]
            elif timeout is not None:
                self.rest()
                self.check_for_suspension(False)
        return None

    def execute_job(self, job: Any, queue: Any) -> None:
        """Run until nothing is left; what is claimed meanwhile joins in."""
        self.set_state(WorkerStatus.BUSY)
        try:
            self.handle(job)
            self.run_batch()
        except Exception:
            self.crashed = not self._stop_requested
            raise

    def run_batch(self) -> None:
        while not self._stop_requested:
            if self.burst:
                self.patiently(self.claim)
            while message := self.next_message(0.0):
                self.handle(message)
            self.pulse.progress += 1
            if not self.has_work():
                break
            self.advance()

    def teardown(self) -> None:
        """Put back what is held, then leave RQ's registers."""
        self.pulse.stop()
        self.claiming.acquire(timeout=FLUSH_S)  # a claim under way ends first; none follows
        self.bookkeeper.stop()
        with suppress(RedisError):
            self.report()  # that it stops: nothing is placed here any more
        self.flush(FLUSH_S)
        try:
            self.give_back()
            super().teardown()  # type: ignore[no-untyped-call]
        except RedisError as error:  # then the successor recovers them, or their leases run out
            log.warning("the store is away while stopping", error=str(error)[:200])
        self.linger()

    def give_back(self) -> None:
        """A worker that stops burns no attempt; one that crashed may have died of what it held."""
        if self.crashed:
            self.store.recover(self.queue_name, self.name)
        elif held := list(self.held.values()):
            self.store.hand_back(self.queue_name, held)
            log.info("handed back", worker=self.name, jobs=len(held))

    # --- shared by the threads ---

    def claim(self) -> int:
        """Claim what there is room for and put it into the inbox; how many that were."""
        with self.claiming:
            room, extra = self.room(), self.extra_room()
            if room <= 0 and not any(extra.values()):
                return 0
            items = self.store.claim(
                self.queue_name, self.name, max(room, 0), idle=not self.held, extra=extra
            )
            for item in items:
                self.held[item.job_id] = item
        for item in items:
            self.hand_in(item)
        return len(items)

    def claim_more(self) -> None:
        """Claim something, also when all places are taken by what is being written as ended."""
        idle = False
        while not self.patiently(self.claim) and not idle:
            idle = not self.held  # only now is there room for certain: one more look
            time.sleep(0.01)

    def room(self) -> int:
        """Places for more; negative while some are displaced."""
        return 0 if self.is_shut() else self.capacity - len(self.held)

    def is_shut(self) -> bool:
        """Nothing is taken beside an item that runs alone, or while the work hangs."""
        if self.pulse.stopping or self.pulse.hanging:
            return True
        return any(item.alone for item in list(self.held.values()))

    def release(self, item: Claimed) -> bool:
        """Take an item out of held; False: it was not there. For any thread."""
        if self.held.get(item.job_id) is not item:
            return False
        del self.held[item.job_id]
        self.listener.wake()
        return True

    # --- the main thread ---

    def next_message(self, seconds: float) -> Message | None:
        try:
            return self.inbox.get(timeout=seconds) if seconds else self.inbox.get_nowait()
        except Empty:
            return None

    def handle(self, message: Message) -> None:
        if isinstance(message, Work):
            if self.held.get(message.item.job_id) is message.item:
                self.drop(message.item.job_id)  # an older execution of it may still be here
                self.start(message.item, message.prepared)
            else:
                self.discard(message.item, message.prepared)
        elif isinstance(message, Cancel):
            self.cancel(message.job_id)
        elif isinstance(message, Lost) and self.release(message.item):
            log.warning("lease lost", worker=self.name, id=message.item.job_id)
            self.drop(message.item.job_id)
        elif isinstance(message, Move):
            self.move(message.job_id, message.pool)
        elif isinstance(message, Promote):
            self.promote(message.job_id, message.sla)
        elif isinstance(message, Do):
            message.call()


def nothing_more() -> None:
    """What woke us is done."""
