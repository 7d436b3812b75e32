"""The thread that sends sessions to the object store once they rest, and sees to its tidiness.

    every few seconds: which sessions were committed since, and rest? ─► push ─► noted here
    once a day, one node of a fleet: sweep

One process of a node does it at a time, for both pools see the same files. The store may be away
for as long as it likes: then nothing is sent, less and less often is it asked, and requests go on.
"""

import fcntl
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from redis.exceptions import RedisError

from kv_tier.files import DiskError
from kv_tier.fork import NoSession
from kv_tier.format import CorruptFile
from kv_tier.remote.bucket import StoreError
from kv_tier.remote.push import Superseded, push
from kv_tier.remote.quota import OverQuota
from kv_tier.remote.remote import Remote
from kv_tier.remote.sweep import sweep
from workers.log import logger
from workers.queue.servant import Servant
from workers.session.recall import is_current, is_void
from workers.session.writer import step_aside
from workers.wire import full_id
from workers.worker_store import WorkerStore

log = logger("session")
LOOK_S: Final = 2.0
OVERLAP_MS: Final = 600_000  # a state may be committed so long after its turn
PAUSE_S: Final = (5.0, 15.0, 60.0, 300.0)  # after a store that failed
SWEEP_S: Final = 86_400.0
FIRST_SWEEP_S: Final = 3600.0


class Exporter(Servant):
    """hurry, finish, end: from any thread."""

    def __init__(self, store: WorkerStore, remote: Remote, *, idle_s: float) -> None:
        super().__init__("exporter")
        self.store, self.remote, self.idle_ms = store, remote, round(1000 * idle_s)
        self.stopped, self.woken = False, threading.Event()
        self.finishing, self.finished = False, threading.Event()
        self.looked_ms = 0  # what was used before has been looked at
        self.failures = 0
        self.refused: dict[tuple[str, str], int] = {}  # session to its generation: until it changes
        self.sweep_at = time.monotonic() + FIRST_SWEEP_S

    def hurry(self) -> None:
        """The node stops: whatever is not there yet is sent, however lately it was used."""
        self.idle_ms = 0
        self.woken.set()

    def finish(self, seconds: float) -> bool:
        """Nothing more is committed here. Whether all was sent, or cannot be now."""
        if not self.finishing:
            self.finishing = True
            self.hurry()
        return self.finished.wait(seconds)

    def end(self) -> None:
        self.stopped = True
        self.woken.set()

    def serve(self) -> None:
        step_aside()
        while not self.stopped:
            is_last = self.finishing
            pause_s = self.look()
            if is_last:
                self.finished.set()
            self.woken.wait(pause_s)
            self.woken.clear()

    def look(self) -> float:
        """One round; seconds to pause then."""
        try:
            with self.alone() as is_ours:
                if is_ours:
                    self.export()
                    self.tidy()
        except (StoreError, DiskError, CorruptFile, RedisError) as error:
            pause_s = PAUSE_S[min(self.failures, len(PAUSE_S) - 1)]
            self.failures += 1
            self.remote.count(failures=1)
            told = {"error": str(error)[:300], "pause_s": pause_s}
            log.warning("sessions wait for the object store", **told)
            return pause_s
        self.failures = 0
        return LOOK_S

    @contextmanager
    def alone(self) -> Iterator[bool]:
        """False: another process of this node does it."""
        fd = os.open(self.remote.tier.root / "export.lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield True
        except BlockingIOError:
            yield False
        finally:
            os.close(fd)

    def export(self) -> None:
        """Every session that rests and was committed since it was sent last.

        Raises StoreError, DiskError, RedisError: then all of these are looked at once more.
        """
        until_ms = self.remote.now_ms() - self.idle_ms
        since_ms = max(0, self.looked_ms - OVERLAP_MS)
        for tenant, session_id, generation in self.remote.tier.ledger.used_between(
            since_ms, until_ms
        ):
            if self.stopped:
                return
            known = self.remote.known.version(tenant, session_id)
            is_there = known is not None and known[1] == generation
            if not is_there and self.refused.get((tenant, session_id)) != generation:
                self.send(tenant, session_id, generation)
        self.looked_ms = until_ms

    def send(self, tenant: str, session_id: str, generation: int) -> None:
        """Unless it is another node's by now, or deleted.   Raises StoreError, RedisError."""
        noted = self.store.session(full_id(tenant, session_id))
        try:
            head = self.remote.tier.sessions.head(tenant, session_id)
            if head is None or is_void(head, noted) or not is_current(head, noted):
                return
            push(self.remote, tenant, session_id, stops=lambda: self.stopped)
        except (Superseded, NoSession):
            log.debug("it was changed while it was sent", session=session_id)
        except (OverQuota, DiskError, CorruptFile) as error:  # of this one: others may go
            self.refused[tenant, session_id] = generation
            log.warning("a session stays on this disk", session=session_id, error=str(error))

    def tidy(self) -> None:
        """Raises StoreError, DiskError, CorruptFile, RedisError."""
        if time.monotonic() < self.sweep_at or self.stopped:
            return
        self.sweep_at = time.monotonic() + SWEEP_S
        self.refused.clear()
        if self.store.takes_turn("kv-sweep", SWEEP_S / 2):
            swept = sweep(
                self.remote, ttl_ms=self.remote.tier.limits.ttl_ms, is_deleted=self.is_deleted
            )
            log.info("the object store is swept", sessions=swept.sessions, objects=swept.objects)

    def is_deleted(self, tenant: str, session_id: str, fence: int) -> bool:
        return fence <= int(self.store.session(full_id(tenant, session_id)).get("dropped", 0))
