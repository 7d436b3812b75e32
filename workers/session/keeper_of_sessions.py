"""The thread that makes a finished turn durable before anybody is told that it finished.

    Kept, end ─► commit the token log ─► note it in Redis ─► to the writer ─► the end is told

So whoever comes next, in whichever pool, finds the log, and knows who still has the rest.

What happens to the commit:

    stale fence, lease gone     somebody else is the owner: nothing is told, nothing is kept
    stale fence, lease ours     a late worker took the fence: it is taken again
    not to be noted             another node's later commit stands, or the session was deleted
    disk full, disk error       the answer is told all the same, and that the session lacks it
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import msgspec
from redis.exceptions import RedisError

from kv_tier.files import DiskError
from kv_tier.format import NewerVersion
from kv_tier.manifest import Manifest
from kv_tier.sessions import StaleFence
from workers.engine.kept import Kept
from workers.log import logger
from workers.queue.emitter import Told
from workers.queue.patience import Result, patiently
from workers.queue.servant import Clerk
from workers.session.backing import Backing
from workers.session.shortage import outlast
from workers.session.suspended import Suspended
from workers.session.token_log import packed
from workers.session.turn import NotOurs, OpenTurn, log_of
from workers.session.writer import Writer
from workers.wire import EndEvent
from workers.worker_store import Claimed, WorkerStore

log = logger("session")
CHANGED: Final = "the session was changed or deleted meanwhile"
FENCES_MAX: Final = 3  # so often a fence is taken again


@dataclass(frozen=True, slots=True)
class Ended:
    """A turn that finished; text: all that the request printed."""

    item: Claimed
    end: EndEvent
    text: str
    kept: Kept
    turn: OpenTurn


class NotSaved(Exception):
    """The turn is not in the session's log; the message says why."""


class Gone(NotSaved):
    """Somebody changed or deleted the session while the turn ran: nothing is missing from it."""


class KeeperOfSessions(Clerk[Ended]):
    """tell, lost, release: called in this thread, and must not wait."""

    def __init__(
        self,
        store: WorkerStore,
        pool: str,
        worker: str,
        backing: Backing,
        writer: Writer,
        *,
        tell: Callable[[Told], object],
        lost: Callable[[Claimed], object],
        release: Callable[[Kept], object],
    ) -> None:
        super().__init__(f"keeper of sessions {pool}")
        self.store, self.pool, self.worker = store, pool, worker
        self.backing, self.writer, self.pulse = backing, writer, backing.pulse
        self.tell, self.lost, self.release = tell, lost, release

    def serve(self) -> None:
        while (ended := self.inbox.get()) is not None:
            self.backing.moves()
            try:
                self.keep(ended)
            except RedisError as error:  # stopping without a store: the successor does it again
                log.warning("a turn is not told", id=ended.item.job_id, error=str(error)[:200])

    def keep(self, ended: Ended) -> None:
        try:
            manifest = self.commit(ended)
            self.note_kept(ended.turn, manifest)
        except NotOurs:
            self.lost(ended.item)
            self.release(ended.kept)
            return
        except NotSaved as reason:
            why = {"reason": str(reason), "error": str(reason.__cause__)}  # which names a path
            log.error("a turn is not saved", session=ended.turn.full_id, **why)
            self.note(ended.turn, unsaved="" if isinstance(reason, Gone) else str(reason))
            self.tell(Told(ended.item, not_saved(ended.end, str(reason)), ended.text))
            self.release(ended.kept)
            return
        self.writer.put(Suspended(ended.kept, ended.turn.full_id, manifest))
        self.tell(Told(ended.item, ended.end, ended.text))

    def commit(self, ended: Ended) -> Manifest:
        """The session's log with this turn, durable. Raises NotOurs, NotSaved."""
        turn, head = ended.turn, ended.turn.head
        if turn.turn is None:  # an earlier execution did
            assert head is not None
            return replace(head, fence=turn.fence)
        manifest = self.log(ended)
        for _ in range(FENCES_MAX):
            try:
                self.write(manifest)
                return manifest
            except StaleFence as error:
                manifest = replace(manifest, fence=self.take_again(ended, error))
            except (DiskError, NewerVersion) as error:
                raise NotSaved(error.reason) from error
        raise NotSaved("its fence is taken again and again")

    def write(self, manifest: Manifest) -> None:
        """Into its file. Raises StaleFence, DiskError, ..."""
        outlast(
            lambda: self.backing.tier.commit(manifest),
            waits=self.backing.moves,
            gives_up=lambda: self.pulse.stopping,
        )

    def take_again(self, ended: Ended, error: StaleFence) -> int:
        """A fence for who still has the lease, if the session is what it was."""
        request, turn = ended.kept.request, ended.turn
        if not self.patiently(lambda: self.store.compose(ended.item, request)):
            raise NotOurs from error
        sessions = self.backing.tier.sessions
        try:
            fence = sessions.take(turn.tenant, turn.session_id, turn.fence)
            head = sessions.head(turn.tenant, turn.session_id)
        except (DiskError, NewerVersion) as problem:
            raise NotSaved(problem.reason) from problem
        if generation(head) != turn.own_generation:
            raise Gone(CHANGED) from error
        return fence

    def log(self, ended: Ended) -> Manifest:
        return log_of(
            ended.turn,
            self.backing.identity,
            ended.kept,
            end_ids=self.backing.text.end_ids,
            text=ended.text,
            digest=ended.end.digest,
            now_ms=self.backing.now_ms(),
        )

    def note_kept(self, turn: OpenTurn, manifest: Manifest) -> None:
        """Said before the end: whoever comes next knows where the session is.

        In a fleet this is the commit: a later owner's, on another node, stands. Raises Gone.
        """
        is_new = turn.turn is not None  # else what an earlier owner committed stands as it is
        is_told = self.note(
            turn,
            fence=manifest.fence,
            log=packed(manifest) if is_new and self.store.keys.node else None,
            committed=manifest.fence if is_new or turn.head is None else turn.head.fence,
            writing=self.worker,
            home=self.worker,
            pool=self.pool,
            tokens=len(manifest.token_ids),
            generation=manifest.generation,
            used_ms=manifest.used_ms,
            unsaved="",
        )
        if not is_told:
            raise Gone(CHANGED)

    def note(
        self,
        turn: OpenTurn,
        *,
        fence: int | None = None,
        log: bytes | None = None,
        **fields: str | int,
    ) -> bool:
        note = partial(self.store.session_note, turn.full_id, fence=fence, log=log, **fields)
        return self.patiently(note)

    def patiently(self, call: Callable[[], Result]) -> Result:
        return patiently(call, lambda: self.pulse.stopping, self.worker)


def generation(manifest: Manifest | None) -> int:
    return manifest.generation if manifest else 0


def not_saved(end: EndEvent, reason: str) -> EndEvent:
    """The end of a turn whose answer is there and whose session does not have it."""
    error = f"session_id: this turn was not saved: {reason}"
    return msgspec.structs.replace(end, code="session_not_saved", error=error)
