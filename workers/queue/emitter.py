"""The thread that writes what the engine said: tokens into journals, ends into results, in order.

A decode step never waits for Redis. Whatever has come meanwhile is written by one call; the end of
a request is written after its tokens. While the store is away everything waits here.
"""

from collections.abc import Callable
from dataclasses import dataclass
from queue import Empty
from typing import Final

from redis.exceptions import RedisError

from workers.log import logger
from workers.queue.patience import Result, patiently
from workers.queue.pulse import Pulse
from workers.queue.servant import Clerk
from workers.wire import EndEvent, TokenEvent
from workers.worker_store import Claimed, WorkerStore

log = logger("queue")
TOKENS_PER_CALL: Final = 512  # events, whose ends are written one by one


@dataclass(frozen=True, slots=True)
class Told:
    """One event of one execution; text: of an end, all that the request printed."""

    item: Claimed
    event: TokenEvent | EndEvent
    text: str = ""


@dataclass(frozen=True, slots=True)
class Written:
    """A mark: call is called, in the emitter's thread, once all that was told before is written."""

    call: Callable[[], object]


class Emitter(Clerk[Told | Written]):
    """on_lost, on_end: called from this thread for an execution that lost its lease, or ended."""

    def __init__(
        self,
        store: WorkerStore,
        pool: str,
        worker: str,
        pulse: Pulse,
        *,
        on_lost: Callable[[Claimed], object],
        on_end: Callable[[Claimed], object],
    ) -> None:
        super().__init__(f"emitter {pool}")
        self.store, self.pool, self.worker, self.pulse = store, pool, worker, pulse
        self.on_lost, self.on_end = on_lost, on_end

    def serve(self) -> None:
        try:
            while self.write(self.drain()):
                pass
        except RedisError as error:  # stopping without a store: the successor computes it again
            log.warning("results not written", error=str(error)[:200])

    def drain(self) -> list[Told | Written | None]:
        """At least one, and whatever else has come."""
        batch: list[Told | Written | None] = [self.inbox.get()]
        while len(batch) < TOKENS_PER_CALL and batch[-1] is not None:
            try:
                batch.append(self.inbox.get_nowait())
            except Empty:
                break
        return batch

    def write(self, batch: list[Told | Written | None]) -> bool:
        """Tokens first: none of a request can follow its end. False after the last."""
        self.journal(batch)
        for told in batch:
            if isinstance(told, Written):
                told.call()
            elif told is not None and isinstance(told.event, EndEvent):
                self.finish(told.item, told.event, told.text)
        return None not in batch

    def journal(self, batch: list[Told | Written | None]) -> None:
        """All tokens in one call, those of one execution together."""
        tokens: dict[str, tuple[Claimed, list[TokenEvent]]] = {}
        for told in batch:
            if isinstance(told, Told) and isinstance(told.event, TokenEvent):
                tokens.setdefault(told.item.execution_id, (told.item, []))[1].append(told.event)
        if not tokens:
            return
        lost = self.patiently(lambda: self.store.journal(self.pool, tokens.values()))
        for item, _ in tokens.values():
            if item.job_id in lost:
                self.on_lost(item)

    def finish(self, item: Claimed, end: EndEvent, text: str) -> None:
        kept = self.patiently(lambda: self.store.finish(self.pool, self.worker, item, end, text))
        (self.on_end if kept else self.on_lost)(item)

    def patiently(self, call: Callable[[], Result]) -> Result:
        return patiently(call, lambda: self.pulse.stopping, self.worker)
