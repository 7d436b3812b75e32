"""The RQ worker of a pool: an engine inside, as many requests per step as it has room for.

    claim ─► [restorer] ─► start: engine.add(request, its journal, what files hold of it)
          ─► step, step, ... ─► emitter: journals and ends
                             └► a session's end: keeper of sessions ─► emitter; then the writer

A request that another worker began goes on from its journal, and by law one with the same tokens.
What has a session, a journal or a long prompt is prepared by a restorer (SessionPart), so that
short requests never wait for a disk.
"""

import time
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from redis.exceptions import RedisError
from rq.worker_registration import clean_worker_registry

from kernels.arrays import DeviceError
from workers.engine.engine import StepAbandoned
from workers.engine.load import EngineLoad
from workers.log import logger
from workers.queue.batch_worker import BatchWorker
from workers.queue.displacing import room_beyond
from workers.queue.emitter import Emitter
from workers.queue.intake import Intake
from workers.queue.messages import Do, Lost, Message
from workers.queue.moving import Mover
from workers.queue.parking import Parking
from workers.queue.pulse import Pulse
from workers.queue.reporting import Reporter
from workers.queue.runner import Runner
from workers.queue.running import RunningItems
from workers.queue.wishes import Wishes
from workers.session.part import SessionPart
from workers.session.turn import Prepared
from workers.wire import EndEvent
from workers.worker_store import NO_MORE, Claimed, WorkerStore

if TYPE_CHECKING:
    from workers.session.backing import Backing

RECONCILE_S: Final = 9.0  # a fleet's node looks, when no other one has for so long
LOOK_AT_ALL_EVERY: Final = 6  # of the maintenance rounds
KEEP_EVERY: Final = 60
STALLED_S: Final = 0.05  # until a step is tried again that found no memory; news ends it
LINGER_S: Final = 2.3  # from the wish to stop: the keeper kills after 3 s


class PoolWorker(BatchWorker):
    """engine must have been made with after_layer(pulse).

    backing: the KV tier behind the engine; None: no sessions, and nothing is read from files
    """

    def __init__(
        self,
        store: WorkerStore,
        pool: str,
        engine: Runner,
        *,
        name: str,
        capacity: int,
        pulse: Pulse,
        model: str = "",
        backing: "Backing | None" = None,
    ) -> None:
        super().__init__(store, pool, name=name, capacity=capacity, pulse=pulse)
        self.engine, self.model, self.failure = engine, model, ""  # of the device, in one line
        self.emitter = Emitter(store, pool, name, pulse, on_lost=self.lost, on_end=self.release)
        self.wishes = Wishes()
        self.reporter = Reporter(self, model, engine.load())
        self.rounds = 0
        self.mover = Mover(
            store,
            pool,
            self.emitter,
            patiently=self.patiently,
            release=self.release,
            lost=self.lost,
        )
        self.sessions = None if backing is None else SessionPart(self, backing)
        self.parking = None
        if self.sessions is not None and backing is not None:
            self.parking = Parking(backing, self.sessions.writer, self.inbox)
        self.running = RunningItems(
            engine,
            self.emitter,
            self.wishes,
            self.sessions,
            self.parking,
            finished=self.count_output,
        )
        self.intake = Intake(
            store,
            self.inbox,
            self.emitter,
            self.wishes,
            self.mover,
            self.sessions,
            patiently=self.patiently,
        )

    # --- hooks ---

    def bootstrap(self, *arguments: Any, **options: Any) -> None:
        if self.sessions is not None:
            self.sessions.begin()
        if self.parking is not None:
            self.parking.start()
        super().bootstrap(*arguments, **options)
        self.emitter.start()
        logger(self.queue_name).info("ready", worker=self.name, model=self.model)

    def hand_in(self, item: Claimed) -> None:
        if item.request is not None:
            self.engine.prepare(item.request)
        self.intake.hand_in(item)

    def start(self, item: Claimed, prepared: Prepared | None) -> None:
        prepared = self.intake.begin(item, prepared)
        if prepared is not None:
            self.running.add(item, prepared)

    def discard(self, item: Claimed, prepared: Prepared | None) -> None:
        self.wishes.take(item.job_id)
        if prepared is not None:
            prepared.close()

    def has_work(self) -> bool:
        if self.engine.has_work():
            return True
        if self.parking is not None:
            self.parking.mind()  # whoever made others give way has ended
        self.take_load()  # what is reported while nothing runs
        return False

    def handle(self, message: Message) -> None:
        super().handle(message)
        if self.parking is not None and isinstance(message, Do):
            try:
                self.parking.mind()  # something is written, or has come back
            except DeviceError as error:  # whoever gets memory then has it filled
                self.fail(error)

    def advance(self) -> None:
        try:
            if self.parking is not None:
                self.parking.mind()
            outputs = self.engine.step()
        except StepAbandoned:
            return
        except DeviceError as error:
            return self.fail(error)
        for output in outputs:
            self.running.tell(output)
        for output in outputs:
            self.go_on_elsewhere(output.request_id)
        if self.sessions is not None:
            self.sessions.write_behind()
        if self.reporter.is_stale():
            self.take_load()
        if self.engine.is_stalled:
            self.await_memory()

    def await_memory(self) -> None:
        """All of it is on its way to files: a message says when some is free."""
        message = self.next_message(STALLED_S)
        if message is not None:
            self.handle(message)

    def fail(self, error: DeviceError) -> None:
        """The device cannot go on: what is here goes on in the other pool, and this process ends.

        What a request has computed is lost but for what is in files; its tokens are journalled.
        What the other pool has no memory for waits in this one's queue for the device's return, an
        attempt burnt (give_back): it may be what the device fails of.
        """
        pools = self.store.keys.own_pools
        self.failure, other = str(error), next(p for p in pools if p != self.queue_name)
        self.request_stop(0, None)
        with self.claiming:  # none follows
            held = list(self.held.values())
        self.running.items.clear()
        fitting = self.mover.fitting(held, other)
        for item in fitting:
            self.mover.hand_over(item, other)
        told = {"requests": len(held), "go_on_in": other, "wait_here": len(held) - len(fitting)}
        logger(self.queue_name).error("the GPU failed", reason=self.failure, **told)
        with suppress(RedisError):
            self.report()

    def cancel(self, job_id: str) -> None:
        if job_id in self.running:
            self.engine.cancel(job_id)
        elif job_id in self.held and self.sessions is not None:
            self.wishes.cancelled.add(job_id)

    def promote(self, job_id: str, sla: str) -> None:
        """The engine ranks it anew from the next step on; nothing is new with the class it has."""
        item = self.held.get(job_id)
        if item is None or self.class_of(item) == sla:
            return
        self.wishes.promoted[job_id] = sla
        if job_id in self.running:
            self.engine.promote(job_id, sla)

    def extra_room(self) -> Mapping[str, int]:
        """More urgent ones, as many as displace others here."""
        if self.is_shut():
            return NO_MORE
        classes = [self.class_of(item) for item in list(self.held.values())]
        return room_beyond(classes, self.capacity, self.store.table)

    def class_of(self, item: Claimed) -> str:
        """Its class now; of what cannot be read the least urgent."""
        return self.wishes.class_of(item) or self.store.table.names[-1]

    def move(self, job_id: str, pool: str) -> None:
        """Between steps: what it has computed goes into files, and the other pool goes on.

        Its own pool: it shall stay after all.
        """
        if pool == self.queue_name:
            self.wishes.moving.pop(job_id, None)
        if not self.mover.can_move(pool) or self.sessions is None:
            return
        item = self.running.item(job_id)
        if item is None:
            if job_id in self.held:
                self.wishes.moving[job_id] = pool
            return
        if self.mover.move(item, pool, self.sessions.engine, self.sessions.writer):
            self.running.forget(job_id)

    def go_on_elsewhere(self, job_id: str) -> None:
        """It has just said a token: the pool that shall go on after the first may take it."""
        item = self.running.item(job_id)
        pool = None if item is None else self.mover.goes_on_elsewhere(item)
        if pool is not None:
            self.move(job_id, pool)

    def drop(self, job_id: str) -> None:
        self.running.drop(job_id)

    def count_output(self, item: Claimed, end: EndEvent) -> None:
        if end.usage is not None:
            self.reporter.lately.ended(self.class_of(item), end.usage.output_tokens)

    def stop_job(self, job_id: str) -> None:
        """As a cancellation, so that it holds even if this process dies now."""
        try:
            self.store.cancel(job_id)
        except RedisError as error:
            logger(self.queue_name).warning("not stopped", id=job_id, error=str(error)[:200])

    def handle_control(self, message: Any) -> None:
        """Also `suspend SESSION`: another pool waits for it."""
        verb, _, session = message["data"].decode(errors="replace").partition(" ")
        if verb != "suspend":
            super().handle_control(message)
        elif self.sessions is not None:
            self.sessions.writer.want(session)

    def give_back(self) -> None:
        """Of a device that failed: what was not handed over, as after a crash."""
        self.crashed = self.crashed or bool(self.failure)
        super().give_back()

    def flush(self, seconds: float) -> None:
        """Sequences leave the engine with what they have computed; what is told is written."""
        if self.sessions is not None:
            if not self.crashed:  # of a device that failed nothing is running any more
                self.running.suspend_all()
            self.sessions.end(seconds / 2)
        self.emitter.flush(seconds)

    def linger(self) -> None:
        """What was handed back goes on without being computed again, as far as time allows."""
        if self.sessions is None or self.crashed or self.failure:
            return
        while (left_s := self.pulse.stopped_at + LINGER_S - time.monotonic()) > 0:
            while message := self.next_message(0.0):
                if isinstance(message, Do):
                    message.call()
            if self.sessions.drain(min(left_s, 0.05)):
                break

    def rest(self) -> None:
        self.take_load()
        self.engine.rest()

    # --- the other threads ---

    def release(self, item: Claimed) -> bool:
        was_here = super().release(item)
        if was_here:
            self.wishes.forget(item.job_id)
        return was_here

    def lost(self, item: Claimed) -> None:
        """The lease is gone: the main thread drops it."""
        self.inbox.put(Lost(item))

    def report(self) -> None:
        held, sessions = list(self.held.values()), self.sessions
        kv = {} if sessions is None else sessions.stats(self.load)
        self.reporter.report(held, kv, None if sessions is None else sessions.engine.sizes)
        self.mover.look(held)

    def maintain(self) -> None:
        if self.store.takes_turn("reconcile", RECONCILE_S):
            back = self.store.reconcile(force=self.rounds % LOOK_AT_ALL_EVERY == 0)
            if back:
                log = logger(self.queue_name)
                log.warning("put back what no queue and no worker had", jobs=back)
        self.store.forget_jobs()
        if self.rounds % KEEP_EVERY == 0:
            self.store.keep()
            clean_worker_registry(self.queues[0])
        self.rounds += 1

    def take_load(self) -> None:
        self.reporter.take(self.engine.load())
        if self.sessions is not None:
            self.sessions.writer.hurry(self.load.is_short)

    @property
    def load(self) -> EngineLoad:
        """What the engine said of itself, LOAD_S ago at most while it runs."""
        return self.reporter.load
