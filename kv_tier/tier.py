"""The KV tier of a node: sessions and their KV as files, under one budget.

    fetch ── which files hold the beginning of these tokens? checked, in RAM ──► Prefix
    put ──── reserve ─► write ─► sync ─► record                                  blocks, tails, states
    commit ─ a manifest: from then on the session is so                          sessions
    fork, drop, pin, collect, prefetch, stats

All of it may be called from several threads, and by several processes at once: both pools, the door
and the command share one folder. Nothing here is called between two decode steps.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kv_tier.prefix import Prefix, Resident, Sizes

if TYPE_CHECKING:
    from kv_tier.chain import Chain
    from kv_tier.files import OsFiles
    from kv_tier.manifest import Manifest
    from kv_tier.objects import Source


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


@dataclass(frozen=True, slots=True)
class Collected:
    """What one collect took away."""

    sessions: int = 0
    objects: int = 0
    temporary: int = 0
    reservations: int = 0
    bytes: int = 0


def wall_ms() -> int:
    return time.time_ns() // 1_000_000


class KvTier:
    """One folder of sessions and objects."""

    def __init__(
        self,
        root: Path,
        limits: TierLimits,
        *,
        files: OsFiles | None = None,
        now_ms: Callable[[], int] = wall_ms,
    ) -> None:
        """Makes the folder at first use.   Raises DiskFull, DiskError."""
        self.root = root
        self.limits = limits

    def chain(self, tenant: str, fingerprint: bytes) -> Chain:
        """The keys of this tenant's tokens under these weights."""
        raise NotImplementedError

    def fetch(
        self,
        chain: Chain,
        token_ids: Sequence[int],
        sizes: Sizes,
        *,
        ends: Sequence[int],
        resident: Resident,
        prefill_tokens_per_s: float,
    ) -> Prefix:
        """The longest beginning that need not be computed, at most all tokens but the last.

        ends      positions at which a tail or a state may lie
        resident  asked with keys of blocks and tails, and with state_name(key) for states

        Never raises for what is on the disk: a bad file is dropped, and the hit is shorter.
        """
        raise NotImplementedError

    def put(self, tenant: str, sources: Iterable[Source], *, seconds: float = 0.0) -> int:
        """Write what is not there yet; bytes written. seconds: what computing all of it took.

        Raises DiskFull when eviction found nothing more to drop, DiskError. What was written
        before that stays.
        """
        raise NotImplementedError

    def commit(self, manifest: Manifest) -> None:
        """From now on the session is so.   Raises StaleFence, DiskFull, DiskError."""
        raise NotImplementedError

    def fork(self, tenant: str, source: str, target: str, position: int | None = None) -> Manifest:
        """A new session that begins as another did, up to `position`; None: all of it.

        No KV is copied.   Raises NoSession, SessionExists, DiskFull, DiskError.
        """
        raise NotImplementedError

    def drop(self, tenant: str, session_id: str) -> int:
        """Forget a session, and its objects but those of others; bytes freed. 0: there was none."""
        raise NotImplementedError

    def pin(self, tenant: str, session_id: str, pinned: bool) -> None:
        """A pinned session is neither evicted nor too old.   Raises NoSession."""
        raise NotImplementedError

    def collect(self) -> Collected:
        """Take away what nobody needs: orphans, old sessions, temporary files, dead reservations."""
        raise NotImplementedError

    def prefetch(self, tenant: str, session_id: str) -> None:
        """Tell the system that a session's files will be read soon. Never raises, never waits."""

    def stats(self) -> dict[str, float]:
        """Counters of this process and sizes of the folder, by name."""
        return {}

    def close(self) -> None:
        """Give back threads and connections; what is on the disk stays."""
