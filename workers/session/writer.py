"""The thread that writes KV and state behind, while the engine goes on.

    put ──► kv: blocks and tail ──► state: held in RAM while the session is warm ──► released
             at once                 written when idle, asked for, memory is short, or stopping
        ──► of who goes on: full blocks, and now and then a state ──► released

What a turn completes is written while it runs, so that a kill costs little of a long one, and a
move has only its end to write.

A step never waits for it: it holds the memory of what is to be written (Kept), up to a bound; what
comes beyond makes it hurry, and then drop, oldest first: that KV will be computed again. A session
that goes on takes the place of what was kept of its last turn.

Invariants: an entry is written by nobody else while busy; each Kept is released exactly once.
"""

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Final

from redis.exceptions import RedisError

from kernels.arrays import DeviceError
from kv_tier.files import DiskError
from kv_tier.format import Kind, NewerVersion
from kv_tier.sessions import StaleFence
from workers.engine.kept import Kept
from workers.log import logger
from workers.queue.servant import Servant
from workers.session.backing import Backing, without_waiting
from workers.session.suspended import Suspended, computed_of, urgency_of
from workers.session.turn import with_kv, with_state
from workers.session.void import drop_void
from workers.wire import full_id
from workers.worker_store import WorkerStore

log = logger("session")
IDLE_S: Final = 3.0  # a session that rests so long has its state written
LOOK_S: Final = 1.0
SHORT_S: Final = 2.0  # memory that is short for so long is taken back unwritten
COLLECT_S: Final = 600.0  # between two collections of what nobody needs, when there is time
FIRST_COLLECT_S: Final = 30.0
STATE_EVERY_MS: Final = 30_000  # of a turn that runs: a state is as large as much of its KV
PAUSE_S: Final = 30.0  # after a write behind that failed: the end of the turn tries again
NICE: Final = 5  # steps come first where cores are short


class Writer(Servant):
    """put, want, hurry, drain: from any thread. release, hold_state: give a call to the engine's.

    release(kept)                nobody holds it any more
    release_kv(kept, then)       the same, but its state is held on: then(Kept), or then(None)
    """

    def __init__(
        self,
        store: WorkerStore,
        worker: str,
        backing: Backing,
        *,
        release: Callable[[Kept], object],
        release_kv: Callable[[Kept, Callable[[Kept | None], object]], object],
        blocks_max: int,
        states_max: int,
    ) -> None:
        super().__init__("writer")
        self.store, self.worker, self.backing = store, worker, backing
        self.release, self.release_kv = release, release_kv
        self.blocks_max, self.states_max = blocks_max, states_max
        self.entries: list[Suspended] = []
        self.written: list[str] = []  # sessions of which that is still to be said
        self.behind: dict[str, set[tuple[Kind, bytes]]] = {}  # files of who goes on
        self.spoiled: set[tuple[Kind, bytes]] = set()  # to be taken away again
        self.changed = threading.Condition()
        self.stopping = False
        self.short_since: float | None = None
        self.paused_until = 0.0
        self.collect_at = time.monotonic() + FIRST_COLLECT_S
        self.counts = dict.fromkeys(
            (
                *("suspended_bytes", "suspended_s", "suspend_dropped", "suspend_failed"),
                *("behind_bytes", "behind_s"),
            ),
            0.0,
        )

    # --- from the other threads ---

    def put(self, entry: Suspended) -> None:
        """Write it, in its turn; the memory is ours until then."""
        with self.changed:
            for older in [e for e in self.entries if e.session and e.session == entry.session]:
                self._give_up(older)
            self.entries.append(entry)
            if entry.is_behind:
                self.behind.setdefault(entry.kept.request.id, set())
            self._mind_bounds()
            self.changed.notify_all()

    def ended(self, request_id: str, *, is_spoiled: bool = False) -> None:
        """A request that was written while it ran has left the engine.

        is_spoiled: what it computed is not to be trusted, and goes out of the files again
        """
        with self.changed:
            written = self.behind.pop(request_id, set())
            if not is_spoiled:
                return
            for entry in [e for e in self.entries if e.kept.request.id == request_id]:
                written |= computed_of(entry.kept)
                self._give_up(entry)
            self.spoiled |= written
            self.changed.notify_all()

    def want(self, session: str) -> None:
        """Another pool waits for this session."""
        with self.changed:
            ours = [entry for entry in self.entries if entry.session == session]
            for entry in ours:
                entry.is_urgent = True
            if not ours:
                self.written.append(session)
            self.changed.notify_all()

    def hurry(self, is_short: bool) -> None:
        """Said again and again: whether requests wait for memory."""
        with self.changed:
            now = time.monotonic()
            if not is_short:
                self.short_since = None
                return
            self.short_since = self.short_since or now
            for entry in list(self.entries):
                entry.is_urgent = True
                if now - self.short_since > SHORT_S:
                    self._drop(entry)
            self.changed.notify_all()

    @property
    def takes_behind(self) -> bool:
        """Whether there is time and room for what may as well be written later."""
        is_short = self.stopping or self.short_since is not None
        return not is_short and time.monotonic() >= self.paused_until

    @property
    def state_every_ms(self) -> int | None:
        """How often a state of a running sequence is taken; None: enough slots are held."""
        with self.changed:
            num_states = sum(entry.kept.state is not None for entry in self.entries)
        return STATE_EVERY_MS if num_states < self.states_max else None

    def drain(self, seconds: float) -> bool:
        """The pool stops: write all that there is time for, what was used last first."""
        with self.changed:
            self.stopping = True
            self.changed.notify_all()
            return self.changed.wait_for(lambda: not self.entries, seconds)

    def holds(self, session: str) -> bool:
        with self.changed:
            return any(entry.session == session for entry in self.entries)

    def stats(self) -> dict[str, float]:
        with self.changed:
            return {**self.counts, "suspend_waiting": float(len(self.entries))}

    # --- the thread ---

    def serve(self) -> None:
        step_aside()
        while True:
            with self.changed:
                entry = self._next()
                if entry is None and not self.written and not self.spoiled:
                    self.changed.wait(self._rest_s())
                written, self.written = self.written, []
                spoiled, self.spoiled = self.spoiled, set()
            if spoiled:
                discard = partial(self.backing.tier.discard, spoiled)
                without_waiting(discard, "KV that is not to be trusted stays")
            for session in written:
                self._tell_written(session)
            if entry is not None:
                self.write(entry)
            elif time.monotonic() > self.collect_at and not self.stopping:
                without_waiting(self._collect, "nothing is collected")
                self.collect_at = time.monotonic() + COLLECT_S

    def _collect(self) -> None:
        """What went by its age may begin anew: the store forgets it, too."""
        self.backing.tier.collect(self._forget)
        if self.store.keys.node:
            drop_void(self.store, self.backing.tier)

    def _forget(self, tenant: str, session_id: str) -> None:
        """Unless another node has gone on with it: then only our old files go."""
        head = self.backing.tier.sessions.head(tenant, session_id)
        fence = head.fence if head is not None else None
        if self.store.session_forget(full_id(tenant, session_id), fence=fence):
            self.backing.forget(tenant, session_id)

    def _rest_s(self) -> float:
        """Until a look is worth it, when nothing is due."""
        return LOOK_S if self.entries else max(LOOK_S, self.collect_at - time.monotonic())

    def _next(self) -> Suspended | None:
        """What is written now: it is busy then."""
        now = time.monotonic()
        due = [entry for entry in self.entries if not entry.is_busy and self._is_due(entry, now)]
        if not due:
            return None
        if self.stopping:
            entry = max(due, key=lambda entry: entry.since)
        else:
            entry = min(due, key=urgency_of)
        entry.is_busy = True
        return entry

    def _is_due(self, entry: Suspended, now: float) -> bool:
        if not entry.is_kv_written or entry.is_urgent or self.stopping:
            return True
        return now - entry.since > IDLE_S

    def write(self, entry: Suspended) -> None:
        if entry.kept.num_kv == 0:  # its journal was whole: nothing was computed
            self._done(entry)
            return
        if not entry.session:
            self._note_cached(entry.kept)
        is_awaited = entry.is_urgent or entry.then is not None
        whole = self.stopping or is_awaited or entry.is_behind
        begin = time.monotonic()
        try:
            num_bytes = self.backing.put(entry.kept, state=whole or entry.is_kv_written)
            self._commit(entry, state=whole or entry.is_kv_written)
        except (DiskError, DeviceError) as error:
            log.warning("KV is not written", session=entry.session, error=str(error))
            self.counts["suspend_failed"] += 1
            self.paused_until = time.monotonic() + PAUSE_S
            self._done(entry)
            return
        with self.changed:
            if entry.is_behind and entry.kept.request.id in self.behind:
                self.behind[entry.kept.request.id] |= computed_of(entry.kept)
        kind = "behind" if entry.is_behind else "suspended"
        self.counts[f"{kind}_bytes"] += num_bytes
        self.counts[f"{kind}_s"] += time.monotonic() - begin
        self.backing.moves()
        if entry.kept.state is None or whole or entry.is_kv_written:
            self._done(entry)
        else:
            self.release_kv(entry.kept, lambda kept: self._keep_state(entry, kept))

    def _note_cached(self, kept: Kept) -> None:
        """Before it is found by whoever goes on with the request: it was computed for that."""
        try:
            self.store.note_cached(kept.request.id, kept.num_reused)
        except RedisError as error:  # then its usage says that more was there
            log.debug("not noted", id=kept.request.id, error=str(error)[:200])

    def _commit(self, entry: Suspended, *, state: bool) -> None:
        """A manifest that names what was written; the session's owner may be another by now."""
        if entry.manifest is None:
            return
        manifest, next_one = entry.manifest, entry.manifest.generation + 1
        if not entry.is_kv_written:
            manifest = with_kv(manifest, entry.kept)
        if state:
            manifest = with_state(manifest, entry.kept)
        manifest = replace(manifest, generation=next_one)
        try:
            self.backing.tier.commit(manifest)
            entry.manifest = manifest
        except (StaleFence, NewerVersion):
            log.debug("somebody else goes on with it", session=entry.session)

    def _keep_state(self, entry: Suspended, kept: Kept | None) -> None:
        """Its blocks are files and given back; the state waits in RAM. In the engine's thread."""
        with self.changed:
            self.entries.remove(entry)
            if any(other.session == entry.session for other in self.entries):  # it went on
                if kept is not None:
                    self.release(kept)
            elif kept is None:
                self.written.append(entry.session)
            else:
                state = replace(entry, kept=kept, is_kv_written=True, is_busy=False)
                self.entries.append(state)
                self._mind_bounds()
            self.changed.notify_all()

    def _done(self, entry: Suspended) -> None:
        with self.changed:
            self.entries.remove(entry)
            self.changed.notify_all()
        self.release(entry.kept)
        self._tell_written(entry.session)
        if entry.then is not None:
            entry.then()

    def _tell_written(self, session: str) -> None:
        """Nothing of it is in our RAM alone; said only if nobody else writes it now."""
        if not session or self.holds(session):
            return
        try:
            if self.store.session(session).get("writing") == self.worker:
                self.store.session_note(session, writing="")
        except RedisError as error:  # whoever waits for it gives up after a while
            log.debug("not said that it is written", session=session, error=str(error)[:200])

    # --- with the lock held ---

    def _mind_bounds(self) -> None:
        """Too much is held: hurry, and beyond twice as much let go, oldest first."""
        for entry in list(self.entries):
            if not self._is_over(1):
                return
            entry.is_urgent = True
            if self._is_over(2):
                self._drop(entry)

    def _is_over(self, times: int) -> bool:
        own = [entry.kept for entry in self.entries if not entry.is_behind]
        blocks = sum(len(kept.blocks) + 1 for kept in own if kept.blocks)
        states = sum(entry.kept.state is not None for entry in self.entries)
        return blocks > times * self.blocks_max or states > times * self.states_max

    def _drop(self, entry: Suspended) -> None:
        if not entry.is_busy and entry.then is None:
            self.counts["suspend_dropped"] += not entry.is_behind
            self._give_up(entry)

    def _give_up(self, entry: Suspended) -> None:
        if not entry.is_busy:
            self.entries.remove(entry)
            self.release(entry.kept)


def step_aside() -> None:
    """Let other threads go before this one."""
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
