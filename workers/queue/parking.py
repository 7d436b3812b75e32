"""Displaced work of a pool: its KV goes into files when somebody more urgent wants the memory.

    main     displaced ──park──► writer ──written──► ... returning ──► read ──bring_back──► waiting
    parking                                                             └ its thread

The lease stays ours all the time; the sequence stays in the engine, without memory. So a displaced
request is cancelled, promoted, moved and handed back like any other.
"""

from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING

from workers.queue.messages import Do, Message
from workers.queue.servant import Clerk
from workers.session.suspended import Suspended
from workers.session.writer import Writer
from workers.wire import Request

if TYPE_CHECKING:
    from workers.engine.parking import Parking as EngineParking
    from workers.session.backing import Backing


@dataclass(frozen=True, slots=True)
class Parked:
    """A request whose KV is in files, or on its way there: num_kv of its tokens."""

    request: Request
    token_ids: list[int]
    num_kv: int


class Parking(Clerk[Parked]):
    """mind belongs to the main thread; the thread reads from files what comes back."""

    def __init__(self, backing: "Backing", writer: Writer, inbox: "SimpleQueue[Message]") -> None:
        super().__init__("parking")
        self.backing, self.writer, self.to_main = backing, writer, inbox
        self.engine: EngineParking = backing.engine.parking
        self.parked: dict[str, Parked] = {}

    def mind(self) -> None:
        """Before a step, and whenever something has changed."""
        for request_id in self.engine.displaced():
            self.park(request_id)
        returning = self.engine.returning()
        if returning is not None:
            self.put(self.parked.pop(returning))

    def park(self, request_id: str) -> None:
        kept = self.engine.park(request_id)
        if kept is None:
            return
        parked = Parked(kept.request, list(kept.token_ids), kept.num_kv)
        self.parked[request_id] = parked
        written = Do(partial(self.written, request_id, parked))
        self.writer.put(Suspended(kept, then=partial(self.to_main.put, written), is_urgent=True))

    def written(self, request_id: str, parked: Parked) -> None:
        """Of a request that left and came back meanwhile, what was parked last is what counts."""
        if self.parked.get(request_id) is parked:
            self.engine.written(request_id)

    def forget(self, request_id: str) -> None:
        """It has ended, or is somebody else's."""
        self.parked.pop(request_id, None)

    def serve(self) -> None:
        while (parked := self.inbox.get()) is not None:
            prefix = self.backing.fetch_again(parked.request, parked.token_ids, parked.num_kv)
            bring_back = partial(self.engine.bring_back, parked.request.id, prefix)
            self.to_main.put(Do(bring_back))
