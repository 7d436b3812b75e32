"""Bytes of the disk are reserved before they are written; who has had its time makes room.

reserve ── fits ──────────────────────────────► write ─► record
   ▲ └──── does not ─► dead reservations go ─► eviction ─► once more ─► OverBudget
   └────────────────────────────────────────────┘
"""

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kv_tier.counters import Counters
from kv_tier.eviction import Candidate, choose, clock_after
from kv_tier.files import DiskError, DiskFull
from kv_tier.ledger import Ledger
from kv_tier.ledger_rows import Room, Shortage
from kv_tier.names import kind_and_key
from kv_tier.objects import ObjectStore

ROUNDS: Final = 8  # others may take what was made free
SLACK_SHARE: Final = 64  # of the budget is made free beyond what is wanted: not each write evicts
SLACK_BYTES: Final = 256 << 20  # at most


@dataclass(frozen=True, slots=True)
class TierLimits:
    """The budget of one folder; 0 is: without a limit.

    quota_bytes      of everything in it
    tenant_bytes     of one tenant
    keep_free_bytes  of the disk, which are never taken
    ttl_ms           after which a session nobody used goes, log and all
    """

    quota_bytes: int = 0
    tenant_bytes: int = 0
    keep_free_bytes: int = 0
    ttl_ms: int = 0


class OverBudget(DiskFull):
    """The budget is used up by what may not go."""

    def __init__(self, root: Path, tenant: str, num_bytes: int) -> None:
        reason = f"no room for {num_bytes} bytes of {tenant!r} within the budget of KV files"
        super().__init__(root, OSError(errno.EDQUOT, reason))


class Budget:
    """Of one folder, which several processes fill."""

    def __init__(
        self,
        root: Path,
        limits: TierLimits,
        ledger: Ledger,
        objects: ObjectStore,
        counters: Counters,
        now_ms: Callable[[], int],
    ) -> None:
        self.root, self.limits = root, limits
        self._ledger, self._objects, self._counters = ledger, objects, counters
        self._now_ms = now_ms

    @contextmanager
    def reserved(self, tenant: str, num_bytes: int) -> Iterator[int]:
        """The number of a reservation, which the ledger is told with what was written.

        Released when the block ends by an exception.   Raises OverBudget, DiskFull, DiskError.
        """
        reservation = self._reserve(tenant, num_bytes)
        try:
            yield reservation
        except BaseException:
            with suppress(DiskError):
                self._ledger.release(reservation)
            raise

    def _reserve(self, tenant: str, num_bytes: int) -> int:
        for attempt in range(ROUNDS):
            answer = self._ledger.reserve(tenant, num_bytes, self._room())
            if not isinstance(answer, Shortage):
                return answer
            freed = self._ledger.release_dead() > 0 if attempt == 0 else False
            if not freed and not self._make_room(tenant, answer):
                break
        raise OverBudget(self.root, tenant, num_bytes)

    def _room(self) -> Room:
        disk = os.statvfs(self.root)
        limits = self.limits
        free = disk.f_bavail * disk.f_frsize
        return Room(limits.quota_bytes, limits.tenant_bytes, free, limits.keep_free_bytes)

    def _make_room(self, tenant: str, shortage: Shortage) -> bool:
        """False: there is not so much that may go; then nothing went."""
        if shortage.tenant_bytes > 0:
            wanted = shortage.tenant_bytes
            if not self._evict(tenant, wanted, slack(self.limits.tenant_bytes)):
                return False
            if shortage.all_bytes <= wanted:
                return True
        return self._evict("", shortage.all_bytes, slack(self.limits.quota_bytes))

    def _evict(self, tenant: str, num_bytes: int, more: int) -> bool:
        """tenant: empty is anybody."""
        chosen = self._choose(tenant, num_bytes + more)
        if sum(candidate.num_bytes for candidate in chosen) < num_bytes:
            return False
        gone = [candidate for candidate in chosen if self._drop(candidate)]
        self._ledger.forget(candidate.name for candidate in gone)
        self._ledger.advance(clock_after(0.0, gone))
        freed = sum(candidate.num_bytes for candidate in gone)
        self._counters.add(evicted_objects=len(gone), evicted_bytes=freed)
        return True

    def _drop(self, candidate: Candidate) -> bool:
        """Whoever has it mapped keeps it. One that cannot be deleted does not stop the others."""
        try:
            self._objects.drop(*kind_and_key(candidate.name))
        except DiskError:
            self._counters.add(undeletable=1)
            self._ledger.shelve(candidate.name)
            return False
        return True

    def _choose(self, tenant: str, num_bytes: int) -> list[Candidate]:
        chosen: list[Candidate] = []
        now_ms, ttl_ms = self._now_ms(), self.limits.ttl_ms

        def visit(window: list[Candidate]) -> bool:
            missing = num_bytes - sum(candidate.num_bytes for candidate in chosen)
            chosen.extend(choose(window, missing, now_ms, ttl_ms=ttl_ms))
            return sum(candidate.num_bytes for candidate in chosen) < num_bytes

        self._ledger.look_through(tenant, visit)
        return chosen


def slack(limit: int) -> int:
    """Whole MiB that are made free beyond what is wanted."""
    return min(limit // SLACK_SHARE, SLACK_BYTES) >> 20 << 20
