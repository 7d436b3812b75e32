"""How a claimed request gets to the engine: what it needs is read, and what was wished meanwhile.

hand_in ─► of sessions, journals, long prompts: a restorer ─► Work
        └► of all others: prepare ──────────────────────────► Work ─► begin ─► add, or its end
"""

from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Final

from workers.kill_point import reach
from workers.queue.emitter import Emitter, Told
from workers.queue.messages import Message, Work
from workers.queue.moving import Mover
from workers.queue.wishes import Wishes
from workers.session.part import SessionPart
from workers.session.turn import Prepared
from workers.wire import EndEvent, TokenEvent
from workers.worker_store import Claimed, WorkerStore

UNREADABLE: Final = EndEvent(
    status="failed", code="bad_record", error="request: what the store holds cannot be read"
)
NO_SESSIONS: Final = EndEvent(
    status="failed", code="no_sessions", error="session_id: this pool keeps no sessions"
)
OTHER_WEIGHTS: Final = EndEvent(
    status="failed",
    code="other_weights",
    error="request: begun with other weights or another arithmetic than this node has; ask again",
)
CANCELLED: Final = EndEvent(status="cancelled", code="cancelled", error="the request was cancelled")


class Intake:
    """Of one pool's worker.   sessions: None: it keeps none"""

    def __init__(
        self,
        store: WorkerStore,
        inbox: "SimpleQueue[Message]",
        emitter: Emitter,
        wishes: Wishes,
        mover: Mover,
        sessions: SessionPart | None,
        *,
        patiently: Callable[[Callable[[], Any]], Any],
    ) -> None:
        self.store, self.inbox, self.emitter = store, inbox, emitter
        self.wishes, self.mover, self.sessions = wishes, mover, sessions
        self.patiently = patiently

    def hand_in(self, item: Claimed) -> None:
        """To a restorer, if it may have to do with files. In the listener's thread."""
        sessions, request = self.sessions, item.request
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

    def begin(self, item: Claimed, prepared: Prepared | None) -> Prepared | None:
        """What the engine is to run; None: it ends, or another pool goes on. In the main thread."""
        reach("start", item.job_id)
        is_cancelled, pool = self.wishes.take(item.job_id)
        if prepared is None:
            self.emitter.put(Told(item, UNREADABLE))
        elif is_cancelled:
            prepared.close()
            self.emitter.put(Told(item, CANCELLED, "".join(prepared.text)))
        elif prepared.journal and item.weights not in ("", self.store.weights):
            prepared.close()
            self.emitter.put(Told(item, OTHER_WEIGHTS, "".join(prepared.text)))
        elif pool is not None:
            prepared.close()
            self.mover.hand_over(item, pool)
        elif self.sessions is None and prepared.request.session_id is not None:
            self.emitter.put(Told(item, NO_SESSIONS))
        else:
            return prepared
        return None
