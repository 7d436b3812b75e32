"""The thread that writes what the engine said: tokens into journals, ends into results, in order.

A decode step never waits for Redis. Whatever has come meanwhile is written by one call, of each
request all of it or nothing. While the store is away everything waits here.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from queue import Empty
from typing import Final

from redis.exceptions import RedisError

from workers.log import logger
from workers.queue.patience import Result, patiently
from workers.queue.pulse import Pulse
from workers.queue.servant import Clerk
from workers.wire import EndEvent, TokenEvent
from workers.worker_store import Claimed, Said, WorkerStore

log = logger("queue")
EVENTS_PER_CALL: Final = 512
ENDS_PER_CALL: Final = 64  # of these: an end takes the store some 0.1 ms, in which it does no other


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
        ends = int(is_end(batch[0]))
        while len(batch) < EVENTS_PER_CALL and ends < ENDS_PER_CALL and batch[-1] is not None:
            try:
                batch.append(self.inbox.get_nowait())
            except Empty:
                break
            ends += is_end(batch[-1])
        return batch

    def write(self, batch: list[Told | Written | None]) -> bool:
        """All of it by one call, what was said of one execution together. False after the last."""
        said = said_in(batch)
        kept = self.patiently(lambda: self.store.tell(self.pool, self.worker, said)) if said else []
        for one, is_kept in zip(said, kept, strict=True):
            if not is_kept:
                self.on_lost(one.item)
            elif one.end is not None:
                self.on_end(one.item)
        for mark in batch:
            if isinstance(mark, Written):
                mark.call()
        return None not in batch

    def patiently(self, call: Callable[[], Result]) -> Result:
        return patiently(call, lambda: self.pulse.stopping, self.worker)


def is_end(told: Told | Written | None) -> bool:
    return isinstance(told, Told) and isinstance(told.event, EndEvent)


def said_in(batch: Iterable[Told | Written | None]) -> list[Said]:
    """What a batch says of each execution: its tokens in order, and its end, which comes last."""
    tokens: dict[str, list[TokenEvent]] = {}
    last: dict[str, Told] = {}
    for told in batch:
        if isinstance(told, Told):
            events = tokens.setdefault(told.item.execution_id, [])
            last[told.item.execution_id] = told
            if isinstance(told.event, TokenEvent):
                events.append(told.event)
    return [
        Said(told.item, tokens[name], ended_by(told.event), told.text, num_told(told.event))
        for name, told in last.items()
    ]


def ended_by(event: TokenEvent | EndEvent) -> EndEvent | None:
    return event if isinstance(event, EndEvent) else None


def num_told(event: TokenEvent | EndEvent) -> int:
    """Of the end of an answer: how many tokens were said of it."""
    if not isinstance(event, EndEvent) or event.status != "finished" or event.usage is None:
        return 0
    return event.usage.output_tokens
