"""The RQ worker of a pool: an engine inside, as many requests per step as it has room for.

    claim ─► start: engine.add(request, its journal) ─► step, step, ... ─► emitter: journal, finish

A request that another worker began goes on from its journal, and by law one with the same tokens.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from redis.exceptions import RedisError
from rq.worker_registration import clean_worker_registry

from workers.engine.engine import EngineLoad, Output, StepAbandoned
from workers.log import logger
from workers.queue.batch_worker import BatchWorker
from workers.queue.emitter import Emitter, Told
from workers.queue.messages import Lost
from workers.queue.pulse import Pulse
from workers.store import Claimed, Store
from workers.wire import EndEvent, PoolLoad, Request, TokenEvent

LOOK_AT_ALL_EVERY: Final = 6  # of the maintenance rounds
KEEP_EVERY: Final = 60
LOAD_S: Final = 0.5
UNREADABLE: Final = EndEvent(
    status="failed", code="bad_record", error="request: what the store holds cannot be read"
)


class Runner(Protocol):
    """What this worker needs of an engine (workers.engine.engine.Engine)."""

    def add(self, request: Request, journal: Sequence[TokenEvent] = (), /) -> None: ...
    def cancel(self, request_id: str) -> None: ...
    def drop(self, request_id: str) -> None: ...
    def has_work(self) -> bool: ...
    def step(self) -> list[Output]: ...
    def load(self) -> EngineLoad: ...
    def rest(self) -> None: ...


def after_layer(pulse: Pulse) -> Callable[[], None]:
    """What the engine calls after each layer: it moves; a stopping worker leaves the step."""

    def moved() -> None:
        pulse.progress += 1
        if pulse.stopping:
            raise StepAbandoned

    return moved


class PoolWorker(BatchWorker):
    """engine must have been made with after_layer(pulse)."""

    def __init__(
        self,
        store: Store,
        pool: str,
        engine: Runner,
        *,
        name: str,
        capacity: int,
        pulse: Pulse,
        model: str = "",
    ) -> None:
        super().__init__(store, pool, name=name, capacity=capacity, pulse=pulse)
        self.engine, self.model = engine, model
        self.emitter = Emitter(store, pool, name, pulse, on_lost=self.lost, on_end=self.release)
        self.running: dict[str, tuple[Claimed, list[str]]] = {}  # with the text so far
        self.load = engine.load()
        self.load_at = 0.0
        self.rounds = 0

    # --- hooks ---

    def bootstrap(self, *arguments: Any, **options: Any) -> None:
        super().bootstrap(*arguments, **options)
        self.emitter.start()
        logger(self.queue_name).info("ready", worker=self.name, model=self.model)

    def prepare(self, item: Claimed) -> list[TokenEvent]:
        """The tokens that earlier owners have journalled."""
        events = [event for _, event in self.store.tokens(item.job_id)]
        return [event for event in events if isinstance(event, TokenEvent)]

    def start(self, item: Claimed, prepared: list[TokenEvent]) -> None:
        if item.request is None:
            self.emitter.put(Told(item, UNREADABLE))
            return
        self.running[item.job_id] = (item, [event.text for event in prepared])
        self.engine.add(item.request, prepared)

    def has_work(self) -> bool:
        return self.engine.has_work()

    def advance(self) -> None:
        try:
            outputs = self.engine.step()
        except StepAbandoned:
            return
        for output in outputs:
            self.tell(output)
        if time.monotonic() - self.load_at > LOAD_S:
            self.take_load()

    def tell(self, output: Output) -> None:
        item, pieces = self.running[output.request_id]
        pieces.append(output.event.text)
        text = ""
        if isinstance(output.event, EndEvent):
            text = "".join(pieces)
            del self.running[output.request_id]
        self.emitter.put(Told(item, output.event, text))

    def cancel(self, job_id: str) -> None:
        self.engine.cancel(job_id)

    def drop(self, job_id: str) -> None:
        if self.running.pop(job_id, None):
            self.engine.drop(job_id)

    def stop_job(self, job_id: str) -> None:
        """As a cancellation, so that it holds even if this process dies now."""
        try:
            self.store.cancel(job_id)
        except RedisError as error:
            logger(self.queue_name).warning("not stopped", job=job_id, error=str(error)[:200])

    def flush(self, seconds: float) -> None:
        self.emitter.flush(seconds)

    def rest(self) -> None:
        self.take_load()
        self.engine.rest()

    # --- the other threads ---

    def lost(self, item: Claimed) -> None:
        """The emitter found the lease gone: the main thread drops it."""
        self.inbox.put(Lost(item))

    def report(self) -> None:
        self.store.report(
            PoolLoad(
                pool=self.queue_name,
                worker=self.name,
                state="ready",
                model=self.model,
                running=len(self.held),
                waiting=self.load.waiting,
                capacity=self.capacity,
                free_blocks=self.load.free_blocks,
                total_blocks=self.load.total_blocks,
                tokens_per_s=self.load.tokens_per_s,
                progress=self.pulse.progress,
            )
        )

    def maintain(self) -> None:
        back = self.store.reconcile(force=self.rounds % LOOK_AT_ALL_EVERY == 0)
        if back:
            logger(self.queue_name).warning("put back what no queue and no worker had", jobs=back)
        if self.rounds % KEEP_EVERY == 0:
            self.store.keep()
            clean_worker_registry(self.queues[0])
        self.rounds += 1

    def take_load(self) -> None:
        """The engine belongs to the main thread; the bookkeeper reports this copy."""
        self.load, self.load_at = self.engine.load(), time.monotonic()
