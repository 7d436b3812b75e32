"""What nobody needs is taken away, and the books are made to agree with the disk.

reservations of processes that are no more
sessions that nobody used for a TTL, unless they are pinned
temporary files, folders of dropped sessions
objects that no manifest names, after a while: their writer died before it could commit
"""

import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from kv_tier.census import YOUNG_MS, Census
from kv_tier.files import DiskError
from kv_tier.format import CorruptFile
from kv_tier.ledger import Ledger
from kv_tier.names import kind_and_key
from kv_tier.objects import ObjectStore
from kv_tier.sessions import Sessions

GRACE_MS: Final = YOUNG_MS  # of temporary files
PAUSE_S: Final = 0.0005  # after each file: an engine's thread wants the interpreter, too


@dataclass(frozen=True, slots=True)
class Collected:
    """What one collect took away.

    bytes  of objects
    """

    sessions: int = 0
    objects: int = 0
    temporary: int = 0
    reservations: int = 0
    bytes: int = 0


class Collector:
    """One at a time is enough, two do no harm."""

    def __init__(
        self,
        sessions: Sessions,
        objects: ObjectStore,
        ledger: Ledger,
        census: Census,
        *,
        drop: Callable[[str, str], int],
        now_ms: Callable[[], int],
    ) -> None:
        """drop(tenant, session id) forgets a session and what is its own; bytes."""
        self._sessions, self._objects = sessions, objects
        self._ledger, self._census = ledger, census
        self._drop, self._now_ms = drop, now_ms

    def collect(self, ttl_ms: int) -> Collected:
        """ttl_ms: 0 is for ever.   Raises DiskFull, DiskError."""
        now_ms = self._now_ms()
        reservations = self._ledger.release_dead()
        temporary = self._objects.sweep(now_ms - GRACE_MS) + self._sessions.sweep(now_ms - GRACE_MS)
        self._reconcile_sessions()
        self._reconcile_objects()
        old = self._ledger.unused_sessions(now_ms - ttl_ms) if ttl_ms else []
        num_bytes = sum(self._drop(tenant, session_id) for tenant, session_id in old)
        orphans = self._ledger.orphans()
        num_bytes += sum(self._drop_object(name) for name in orphans)
        return Collected(len(old), len(orphans), temporary, reservations, num_bytes)

    def _drop_object(self, name: bytes) -> int:
        """Its bytes; 0 when it cannot be deleted, which is then tried again another time."""
        try:
            num_bytes = self._objects.drop(*kind_and_key(name))
        except DiskError:
            return 0
        self._ledger.forget([name])
        return num_bytes

    def _reconcile_sessions(self) -> None:
        """A session that a killed process committed, or dropped, without telling the ledger."""
        known = self._ledger.marks()
        for session in self._sessions.ids():
            time.sleep(PAUSE_S)
            mark = known.pop(session, None)
            with suppress(FileNotFoundError, DiskError, CorruptFile):
                changed_ms = os.stat(self._sessions.folder(*session)).st_mtime_ns // 10**6
                is_new = mark is None or changed_ms > mark.used_ms
                head = self._sessions.head(*session) if is_new else None
                if head is not None and (head.generation, head.used_ms) != mark:
                    self._ledger.mend(session, mark, head)
        for session, mark in known.items():
            if self._sessions.head(*session) is None:
                self._ledger.mend(session, mark, None)

    def _reconcile_objects(self) -> None:
        """Files that a killed process wrote, or deleted, without telling the ledger."""
        known = self._ledger.names()  # first: what is written from now on is on the disk, too
        for name, num_bytes, _ in self._census.objects():
            if name in known:
                known.remove(name)
                continue
            time.sleep(PAUSE_S)
            stored = self._census.stored(name, num_bytes)
            if stored is not None:
                self._ledger.record([stored])
        self._ledger.forget(known)
