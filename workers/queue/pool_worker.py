"""The RQ worker of a pool: an engine inside, as many requests per step as it has room for.

    claim ─► [restorer] ─► start: engine.add(request, its journal, what files hold of it)
          ─► step, step, ... ─► emitter: journal, finish
                             └► a session's end: keeper of sessions ─► emitter; then the writer

A request that another worker began goes on from its journal, and by law one with the same tokens.
What has a session, a journal or a long prompt is prepared by a restorer (SessionPart), so that
short requests never wait for a disk.
"""

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from redis.exceptions import RedisError
from rq.worker_registration import clean_worker_registry

from kernels.arrays import DeviceError
from workers.engine.engine import Output, StepAbandoned
from workers.engine.lately import Lately
from workers.kill_point import reach
from workers.log import logger
from workers.queue.batch_worker import BatchWorker
from workers.queue.displacing import room_beyond
from workers.queue.emitter import Emitter, Told
from workers.queue.messages import Do, Lost, Message, Work
from workers.queue.moving import Mover
from workers.queue.parking import Parking
from workers.queue.pulse import Pulse
from workers.queue.reporting import with_files, with_load
from workers.queue.runner import Runner
from workers.queue.wishes import Wishes
from workers.session.keeper_of_sessions import Ended
from workers.session.part import SessionPart
from workers.session.turn import OpenTurn, Prepared
from workers.session.writer import Suspended
from workers.wire import POOLS, EndEvent, PoolLoad, TokenEvent
from workers.worker_store import NO_MORE, Claimed, WorkerStore

if TYPE_CHECKING:
    from workers.session.backing import Backing

LOOK_AT_ALL_EVERY: Final = 6  # of the maintenance rounds
KEEP_EVERY: Final = 60
LOAD_S: Final = 0.5
STALLED_S: Final = 0.05  # until a step is tried again that found no memory; news ends it
LINGER_S: Final = 2.3  # from the wish to stop: the keeper kills after 3 s
UNREADABLE: Final = EndEvent(
    status="failed", code="bad_record", error="request: what the store holds cannot be read"
)
NO_SESSIONS: Final = EndEvent(
    status="failed", code="no_sessions", error="session_id: this pool keeps no sessions"
)
CANCELLED: Final = EndEvent(status="cancelled", code="cancelled", error="the request was cancelled")


@dataclass(frozen=True, slots=True)
class Running:
    """An item in the engine; pieces: its text so far."""

    item: Claimed
    pieces: list[str]
    turn: OpenTurn | None


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
        self.engine, self.model = engine, model
        self.emitter = Emitter(store, pool, name, pulse, on_lost=self.lost, on_end=self.release)
        self.running: dict[str, Running] = {}
        self.wishes = Wishes()
        self.load = engine.load()
        self.load_at = 0.0
        self.rounds = 0
        self.began_ms = time.time_ns() // 1_000_000
        self.failure = ""  # of the device, in one line
        self.lately = Lately()
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
        """To a restorer, if it may have to do with files."""
        sessions, request = self.sessions, item.request
        if request is not None:
            self.engine.prepare(request)
        if item.then_pool is not None:
            self.patiently(lambda: self.mover.look([item]))
        if sessions is not None and request is not None and sessions.wants(request):
            return sessions.take(item)
        prepared = self.patiently(lambda: self.prepare(item))
        if sessions is not None and prepared is not None and prepared.journal:
            return sessions.take(item)
        self.inbox.put(Work(item, prepared))
        return None

    def prepare(self, item: Claimed) -> Prepared | None:
        """With the tokens that earlier owners have journalled."""
        if item.request is None:
            return None
        events = [] if item.is_first else [e for _, e in self.store.tokens(item.job_id)]
        return Prepared(item.request, [e for e in events if isinstance(e, TokenEvent)])

    def start(self, item: Claimed, prepared: Prepared | None) -> None:
        reach("start", item.job_id)
        is_cancelled, pool = self.wishes.take(item.job_id)
        if prepared is None:
            self.emitter.put(Told(item, UNREADABLE))
        elif is_cancelled:
            prepared.close()
            self.emitter.put(Told(item, CANCELLED, "".join(prepared.text)))
        elif pool is not None:
            prepared.close()
            self.mover.hand_over(item, pool)
        elif self.sessions is None and prepared.request.session_id is not None:
            self.emitter.put(Told(item, NO_SESSIONS))
        else:
            self.add(item, prepared)

    def add(self, item: Claimed, prepared: Prepared) -> None:
        self.running[item.job_id] = Running(item, prepared.text, prepared.turn)
        request, journal = self.wishes.classed(prepared.request), prepared.journal
        if self.sessions is None:
            self.engine.add(request, journal)
        else:
            keep = prepared.turn is not None
            prefix = prepared.prefix
            behind = keep or item.then_pool is not None  # what goes on elsewhere is on its way soon
            self.sessions.engine.add(request, journal, prefix=prefix, keep=keep, behind=behind)

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
            self.tell(output)
        for output in outputs:
            self.go_on_elsewhere(output.request_id)
        if self.sessions is not None:
            self.sessions.write_behind()
        if time.monotonic() - self.load_at > LOAD_S:
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
        self.failure, other = str(error), next(p for p in POOLS if p != self.queue_name)
        self.request_stop(0, None)
        with self.claiming:  # none follows
            held = list(self.held.values())
        self.running.clear()
        fitting = self.mover.fitting(held, other)
        for item in fitting:
            self.mover.hand_over(item, other)
        told = {"requests": len(held), "go_on_in": other, "wait_here": len(held) - len(fitting)}
        logger(self.queue_name).error("the GPU failed", reason=self.failure, **told)
        with suppress(RedisError):
            self.report()

    def tell(self, output: Output) -> None:
        running = self.running[output.request_id]
        item, event = running.item, output.event
        running.pieces.append(event.text)
        if not isinstance(event, EndEvent):
            self.emitter.put(Told(item, event))
            return
        self.forget(output.request_id, is_spoiled=event.code == "numeric_error")
        if event.status == "finished" and event.usage is not None:
            self.lately.ended(self.class_of(item), event.usage.output_tokens)
        text, kept = "".join(running.pieces), output.kept
        if self.sessions is not None and kept is not None:
            if running.turn is not None and event.status == "finished":
                self.sessions.keeper.put(Ended(item, event, text, kept, running.turn))
                return
            self.sessions.engine.release(kept)
        self.emitter.put(Told(item, event, text))

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
        running = self.running.get(job_id)
        if running is None:
            if job_id in self.held:
                self.wishes.moving[job_id] = pool
            return
        if self.mover.move(running.item, pool, self.sessions.engine, self.sessions.writer):
            self.forget(job_id)

    def go_on_elsewhere(self, job_id: str) -> None:
        """It has just said a token: the pool that shall go on after the first may take it."""
        running = self.running.get(job_id)
        pool = None if running is None else self.mover.goes_on_elsewhere(running.item)
        if pool is not None:
            self.move(job_id, pool)

    def drop(self, job_id: str) -> None:
        if job_id in self.running:
            self.forget(job_id)
            self.engine.drop(job_id)

    def forget(self, job_id: str, *, is_spoiled: bool = False) -> None:
        """It is not in the engine any more.   is_spoiled: what it computed is not to be trusted"""
        del self.running[job_id]
        if self.sessions is not None:
            self.sessions.writer.ended(job_id, is_spoiled=is_spoiled)
        if self.parking is not None:
            self.parking.forget(job_id)

    def stop_job(self, job_id: str) -> None:
        """As a cancellation, so that it holds even if this process dies now."""
        try:
            self.store.cancel(job_id)
        except RedisError as error:
            logger(self.queue_name).warning("not stopped", id=job_id, error=str(error)[:200])

    def handle_control(self, message: Any) -> None:
        """Also `suspend SESSION`: another pool waits for it."""
        verb, _, session = message["data"].decode().partition(" ")
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
                self.suspend_all()
            self.sessions.end(seconds / 2)
        self.emitter.flush(seconds)

    def suspend_all(self) -> None:
        assert self.sessions is not None
        for job_id in list(self.running):
            kept = self.sessions.engine.suspend(job_id)
            if kept is not None:
                self.sessions.writer.put(Suspended(kept))

    def linger(self) -> None:
        """What was handed back goes on without being computed again, as far as time allows."""
        if self.sessions is None or self.crashed or self.failure:
            return
        while (left_s := self.pulse.stopped_at + LINGER_S - time.monotonic()) > 0:
            while message := self.next_message(0.0):
                if isinstance(message, Do):
                    message.call()
            if self.sessions.writer.drain(min(left_s, 0.05)):
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
        held, load = list(self.held.values()), self.load
        kv = self.sessions.stats(load) if self.sessions is not None else {}
        sizes = self.sessions.engine.sizes if self.sessions is not None else None
        told = PoolLoad(
            pool=self.queue_name,
            worker=self.name,
            state=self.state_told(),
            note=self.failure,
            began_ms=self.began_ms,
            model=self.model,
            running=len(held),
            capacity=self.capacity,
            progress=self.pulse.moves,
            kv=kv,
        )
        classes = map(self.class_of, held)
        cost = with_files(load.cost, sizes, kv)
        now_ms = 1000 * time.monotonic()
        self.store.report(with_load(told, load, cost, classes, self.lately, now_ms))
        self.mover.look(held)

    def state_told(self) -> str:
        if self.failure:
            return "failed"
        return "stopping" if self.pulse.stopping else "ready"

    def maintain(self) -> None:
        back = self.store.reconcile(force=self.rounds % LOOK_AT_ALL_EVERY == 0)
        if back:
            logger(self.queue_name).warning("put back what no queue and no worker had", jobs=back)
        self.store.forget_jobs()
        if self.rounds % KEEP_EVERY == 0:
            self.store.keep()
            clean_worker_registry(self.queues[0])
        self.rounds += 1

    def take_load(self) -> None:
        """The engine belongs to the main thread; the bookkeeper reports this copy."""
        self.load, self.load_at = self.engine.load(), time.monotonic()
        if self.sessions is not None:
            self.sessions.writer.hurry(self.load.is_short)
