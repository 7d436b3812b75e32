"""The threads between a claim and the engine: whose history is it, and what of it is in files.

    item ─► take the session's fence ─► its log, here or elsewhere ─► compose the prompt ─► wait
         until another pool has written ─► open and check the files ─► Prepared, into the inbox

A disk that fails or hangs makes the hit shorter. Only a history that cannot be read ends a request,
for to go on without it would be another conversation. A process that has no descriptor or memory
left says nothing about a history: it tries again for a while, then ends; its successor has both.
"""

import time
from collections.abc import Callable, Mapping
from functools import partial
from queue import SimpleQueue
from typing import Any, Final

from redis.exceptions import RedisError

from kv_tier.chain import common_length
from kv_tier.files import DiskError
from kv_tier.format import NewerVersion
from kv_tier.manifest import Manifest
from workers.log import logger
from workers.queue.patience import Result, patiently
from workers.queue.servant import Servant
from workers.session.backing import Backing
from workers.session.compose import ComposeError, Turn, compose, turn_before, with_prompt
from workers.session.recall import Recall, Recalled, is_current, is_void
from workers.session.refusing import refuse_gap, refuse_loss, refuse_other_weights
from workers.session.shortage import is_short, outlast
from workers.session.turn import NotOurs, OpenTurn, Prepared
from workers.wire import EndEvent, Request, TokenEvent, full_id
from workers.worker_store import Claimed, WorkerStore

log = logger("session")
WRITING_S: Final = 5.0  # what a session waits for the pool that still writes it
LOOK_S: Final = 0.05
ALIVE_LOOKS: Final = 10  # so many looks between two questions whether that pool lives


class Restorer(Servant):
    """Prepares items one after the other; several of them may share one queue.

    done(item, prepared)   it may start
    ended(item, end)       it cannot
    lost(item)             it is somebody else's
    is_wanted(item)        False: cancelled or lost meanwhile; it is handed on as it is
    most_tokens            that the pool's memory holds of one request
    recall                 finds what this node's files do not have; None: nobody does
    """

    def __init__(
        self,
        name: str,
        store: WorkerStore,
        worker: str,
        backing: Backing,
        items: "SimpleQueue[Claimed | None]",
        *,
        done: Callable[[Claimed, Prepared], object],
        ended: Callable[[Claimed, EndEvent], object],
        lost: Callable[[Claimed], object],
        is_wanted: Callable[[Claimed], bool],
        most_tokens: int = 1 << 62,
        recall: Recall | None = None,
    ) -> None:
        super().__init__(f"restorer {name}")
        self.store, self.worker, self.backing, self.items = store, worker, backing, items
        self.pulse, self.most_tokens = backing.pulse, most_tokens
        self.done, self.ended, self.lost, self.is_wanted = done, ended, lost, is_wanted
        self.recall = recall

    def serve(self) -> None:
        while (item := self.items.get()) is not None and not self.pulse.stopping:
            self.backing.moves()
            try:
                restore = partial(self.restore, item)
                outlast(restore, waits=self.backing.moves, gives_up=lambda: self.pulse.stopping)
            except NotOurs:
                self.lost(item)
            except RedisError as error:  # stopping without a store: it is handed back
                log.warning("not restored", id=item.job_id, error=str(error)[:200])
            except Exception as error:
                if is_short(error) and not self.pulse.stopping:
                    raise  # ends the process (Servant): the request has done nothing wrong
                if not is_short(error):  # else it is handed back
                    self.ended(item, end_of_error(item, error))

    def restore(self, item: Claimed) -> None:
        request = item.request
        assert request is not None, item.job_id
        journal = self.journal(item)
        if request.session_id is None:
            self.done(item, Prepared(request, journal, self.backing.fetch(request, journal, None)))
            return
        turn = self.open(item, request, request.session_id)
        request = self.composed(item, request, turn)
        prefix = None
        if self.wait_for_writer(item, turn.full_id):
            if turn.head is not None:
                self.backing.bring(turn.head, common_length(turn.head.token_ids, request.token_ids))
            prefix = self.backing.fetch(request, journal, turn.head)
        self.done(item, Prepared(request, journal, prefix, turn))

    def journal(self, item: Claimed) -> list[TokenEvent]:
        """The tokens that earlier owners have journalled."""
        events = [event for _, event in self.patiently(lambda: self.store.tokens(item.job_id))]
        return [event for event in events if isinstance(event, TokenEvent)]

    def open(self, item: Claimed, request: Request, session_id: str) -> OpenTurn:
        """The session as it is, and ours from now on. Raises ComposeError, DiskError, ..."""
        tenant, full = request.tenant, full_id(request.tenant, session_id)
        fence = self.take(item, tenant, session_id)
        noted = self.patiently(lambda: self.store.session(full))
        own = self.backing.tier.sessions.head(tenant, session_id)
        if own is not None and is_void(own, noted):
            self.backing.tier.drop(tenant, session_id)
            own, fence = None, self.take(item, tenant, session_id)
        found = self.newest(tenant, session_id, own, noted)
        head = found.manifest
        refuse_other_weights(head, self.backing.identity)
        on_disk = own.generation if own else 0
        if head is not None and is_current(head, noted) and is_committed(request, head):
            return OpenTurn(tenant, session_id, full, fence, head, None, on_disk)
        turn = compose(request, head, self.backing.text)
        if request.session_mode != "history" and not tells_more(turn, head):  # that is all of it
            refuse_gap(noted.get("unsaved"))
            refuse_loss(self.backing.tier.sessions, tenant, session_id, found, noted)
        return OpenTurn(tenant, session_id, full, fence, head, turn, on_disk)

    def take(self, item: Claimed, tenant: str, session_id: str) -> int:
        """The right to commit it here; claims to come, on any node, have higher ones."""
        try:
            fence = self.backing.tier.sessions.take(tenant, session_id, item.fence)
        except DiskError as error:  # the commit will say that it is not saved
            log.warning("no fence taken", session=session_id, error=str(error))
            return item.fence
        if fence > item.fence:  # our files know of more than the store does
            full = full_id(tenant, session_id)
            self.patiently(lambda: self.store.session_note(full, fence=fence))
        return fence

    def newest(
        self, tenant: str, session_id: str, own: Manifest | None, noted: Mapping[str, Any]
    ) -> Recalled:
        """The session as it was committed last; when nobody has it, what our files have."""
        recall = self.recall
        if recall is None or is_current(own, noted):
            return Recalled(own)
        found = self.patiently(lambda: recall.recall(tenant, session_id, own, noted))
        return found if found.manifest else Recalled(own, found.trouble)

    def composed(self, item: Claimed, request: Request, opened: OpenTurn) -> Request:
        """The request with its prompt, and so in the store. Raises NotOurs."""
        turn = opened.turn
        if not request.composed:
            prompt = turn or (opened.head and turn_before(request, opened.head))
            assert prompt, item.job_id  # open() has found one or the other
            request = with_prompt(request, prompt, self.most_tokens)
        forked_at = turn.forked_at if turn else None
        if not self.patiently(lambda: self.store.compose(item, request, forked_at=forked_at)):
            raise NotOurs
        return request

    def wait_for_writer(self, item: Claimed, full: str) -> bool:
        """Until what another pool has of the session is in files, or it is not worth the wait.

        False: nobody wants the item any more.
        """
        deadline, looks = time.monotonic() + WRITING_S, 0
        while self.is_wanted(item) and not self.pulse.stopping:
            writer = self.patiently(lambda: self.store.session(full)).get("writing")
            if not writer or writer == self.worker or time.monotonic() > deadline:
                return True
            if looks % ALIVE_LOOKS == 0 and not self.lives(writer):
                return True
            if looks == 0:
                self.ask_to_write(full)
            looks += 1
            self.backing.moves()
            time.sleep(LOOK_S)
        return False

    def lives(self, worker: str) -> bool:
        return worker in {load.worker for load in self.patiently(self.store.loads)}

    def ask_to_write(self, full: str) -> None:
        """Tell the session's pool that it is wanted elsewhere: its state may be in RAM only."""
        keys = self.store.keys
        self.patiently(lambda: self.store.redis.publish(keys.control, f"suspend {full}"))

    def patiently(self, call: Callable[[], Result]) -> Result:
        return patiently(call, lambda: self.pulse.stopping, self.worker)


def is_committed(request: Request, head: Manifest) -> bool:
    """Whether the session's last turn is this request's: an earlier owner could not say so."""
    if request.composed:
        return head.last_request == request.id
    return turn_before(request, head) is not None


def tells_more(turn: Turn, head: Manifest | None) -> bool:
    """Whether the client's messages hold answers that the session's log does not have."""
    known = len(head.messages) if head else 0
    return any(message.role == "assistant" for message in turn.messages[known:])


def end_of_error(item: Claimed, error: Exception) -> EndEvent:
    """How a request ends that cannot be prepared."""
    if isinstance(error, ComposeError):
        return EndEvent(status="failed", code=error.code, error=error.reason)
    if isinstance(error, DiskError | NewerVersion):
        reason = f"session_id: its history cannot be read: {error}"
        return EndEvent(status="failed", code="session_unreadable", error=reason)
    log.error("a request cannot be prepared", id=item.job_id, exc_info=error)
    reason = "request: it cannot be prepared from what the store and the session hold"
    return EndEvent(status="failed", code="bad_record", error=reason)
