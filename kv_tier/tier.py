"""The KV tier of a node: sessions and their KV as files, under one budget.

    fetch ── which files hold the beginning of these tokens? checked, in RAM ──► Prefix
    put ──── reserve ─► write ─► sync ─► record                    blocks, tails, states
    commit ─ a manifest: from then on the session is so            sessions
    fork, drop, pin, collect, prefetch, stats

All of it may be called from several threads, and by several processes at once: both pools, the door
and the command share one folder. Nothing here is called between two decode steps.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from threading import BoundedSemaphore
from typing import Final

import structlog

from kv_tier.budget import Budget, TierLimits
from kv_tier.census import Census
from kv_tier.chain import Chain, read_salt
from kv_tier.collect import Collected, Collector
from kv_tier.counters import Counters
from kv_tier.fetch import Fetcher
from kv_tier.files import DiskError, DiskFull, OsFiles
from kv_tier.fork import NoSession, SessionExists, forked
from kv_tier.format import Kind, file_bytes
from kv_tier.ledger import Ledger
from kv_tier.ledger_rows import Stored
from kv_tier.loader import Loader
from kv_tier.manifest import Manifest
from kv_tier.names import kind_and_key, links_of, manifest_bytes, name_of, parent_name
from kv_tier.objects import ObjectStore, Source
from kv_tier.page_cache import is_tight
from kv_tier.prefix import Prefix, Resident, Sizes
from kv_tier.sessions import Sessions

log = structlog.get_logger(part="kv")
PREFETCH_BYTES: Final = 4 << 30  # of one session: more would push others out of RAM
PREFETCHES: Final = 64  # that may wait; more are for nothing, the request is there before them


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
        files = files or OsFiles()
        self.root, self.limits = root, limits
        self._files, self._now_ms = files, now_ms
        self._salt = read_salt(root, files)
        self.sessions = Sessions(root, files)
        self.objects = ObjectStore(root, files)
        self._census = Census(root, self.sessions, self.objects)
        self.ledger = Ledger(root, self._census, now_ms)
        self._counters = Counters()
        self._budget = Budget(root, limits, self.ledger, self.objects, self._counters, now_ms)
        self._loader = Loader(self.objects)
        self._fetcher = Fetcher(self.objects, self.ledger, self._loader, self._counters)
        self._prefetcher = ThreadPoolExecutor(1, thread_name_prefix="kv-prefetch")
        self._prefetches = BoundedSemaphore(PREFETCHES)

    def chain(self, tenant: str, fingerprint: bytes) -> Chain:
        """The keys of this tenant's tokens under these weights."""
        return Chain(self._salt, tenant, fingerprint)

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
        prefill_tokens_per_s  a restore that takes longer is skipped; 0: unknown, nothing is

        Never raises for what is on the disk: a bad file is dropped, and the hit is shorter.
        """
        return self._fetcher.fetch(
            chain,
            token_ids,
            sizes,
            ends=ends,
            resident=resident,
            prefill_tokens_per_s=prefill_tokens_per_s,
        )

    def put(self, tenant: str, sources: Iterable[Source], *, seconds: float = 0.0) -> int:
        """Write what is not there yet; bytes written. seconds: what computing all of it took.

        Raises DiskFull when eviction found nothing more to drop, DiskError. What was written
        before that stays.
        """
        num_bytes, drop_cache = 0, is_tight()
        new, were_there = list[Stored](), list[Stored]()
        try:
            for source in sources:
                assert source.tenant == tenant, (source.tenant, tenant)
                stored = stored_of(source)
                if self.objects.has(source.kind, source.key):
                    self.objects.write(source)  # is nothing, but sync makes its name durable
                    were_there.append(stored)
                else:
                    num_bytes += self._write(source, stored, drop_cache)
                    new.append(stored)
        finally:
            if new or were_there:
                self.objects.sync()
        with suppress(DiskError):  # only books
            self.ledger.record(were_there)
            if seconds > 0 and new:
                num_tokens = sum(one.num_tokens for one in (*new, *were_there))
                self.ledger.price(new, seconds / num_tokens)
        self._counters.add(written_objects=len(new), written_bytes=num_bytes)
        return num_bytes

    def renew(self, block_keys: Iterable[bytes]) -> None:
        """Blocks of a sequence that goes on: they wait longer for their manifest."""
        with suppress(DiskError):  # only books
            self.ledger.renew(name_of("block", key) for key in block_keys)

    def _write(self, source: Source, stored: Stored, drop_cache: bool) -> int:
        """Bytes written; 0: somebody else was quicker."""
        with self._budget.reserved(source.tenant, stored.num_bytes) as reservation:
            num_bytes = self.objects.write(source, drop_cache=drop_cache)
            self.ledger.record([stored], reservation)
        return num_bytes

    def commit(self, manifest: Manifest) -> None:
        """From now on the session is so.   Raises StaleFence, DiskFull, DiskError."""
        with ExitStack() as stack:
            reservation = self._reserve_log(manifest, stack)
            self.sessions.commit(manifest)
        try:
            self.ledger.commit(manifest, reservation)
        except DiskError as error:  # the session is committed; collect mends the books
            log.warning("the ledger does not know of a commit", error=str(error))
            with suppress(DiskError):
                self.ledger.release(reservation or 0)

    def _reserve_log(self, manifest: Manifest, stack: ExitStack) -> int | None:
        """Room for a manifest; None: none is wanted, or the ledger is out of order.

        A log is more than books: it is kept without them.   Raises DiskFull.
        """
        try:
            more = manifest_bytes(manifest)
            more -= self.ledger.manifests_bytes(manifest.tenant, manifest.session_id)
            if more > 0:
                return stack.enter_context(self._budget.reserved(manifest.tenant, more))
        except DiskFull:
            raise
        except DiskError as error:
            log.warning("the ledger is out of order", error=str(error))
        return None

    def fork(
        self,
        tenant: str,
        source: str,
        target: str,
        position: int | None = None,
        *,
        fence: int = 0,
    ) -> Manifest:
        """A new session that begins as another did, up to `position`; None: all of it.

        fence  at least, where others know of higher ones than this folder

        No KV is copied.   Raises NoSession, SessionExists, BadName, DiskFull, DiskError.
        """
        manifest = self._head(tenant, source)
        if self.sessions.head(tenant, target) is not None:
            raise SessionExists(tenant, target)
        fence = self.sessions.take(tenant, target, fence)
        new = forked(manifest, target, position, fence=fence, now_ms=self._now_ms())
        self.commit(new)
        return new

    def drop(self, tenant: str, session_id: str) -> int:
        """Forget a session, and its objects but those of others; bytes freed. 0: there was none.

        Raises BadName, DiskFull, DiskError.
        """
        was_there = self.sessions.drop(tenant, session_id)
        self._files.remove(self._census.pin_path(tenant, session_id))
        num_bytes = self.ledger.manifests_bytes(tenant, session_id)
        own = self.ledger.drop_session(tenant, session_id)
        num_bytes += sum(self.objects.drop(*kind_and_key(name)) for name in own)
        self.ledger.forget(own)
        return num_bytes if was_there else 0

    def discard(self, objects: Iterable[tuple[Kind, bytes]]) -> int:
        """Take objects away that are not to be trusted, whoever names them; bytes freed.

        A session that names one has a shorter hit.   Raises DiskError.
        """
        gone = list(objects)
        num_bytes = sum(self.objects.drop(kind, key) for kind, key in gone)
        self.ledger.forget(name_of(kind, key) for kind, key in gone)
        return num_bytes

    def pin(self, tenant: str, session_id: str, pinned: bool) -> None:
        """A pinned session is neither evicted nor too old.

        Raises NoSession, BadName, DiskFull, DiskError.
        """
        self._head(tenant, session_id)
        path = self._census.pin_path(tenant, session_id)
        if not pinned:
            self._files.remove(path)
        elif not path.exists():
            self._files.make_folders(self.root, "pins", tenant)
            self._files.create_empty(path)
            self._files.sync_folder(path.parent)
        self.ledger.pin(tenant, session_id, pinned)

    def collect(self, forget: Callable[[str, str], object] = lambda *session: None) -> Collected:
        """Take away what nobody needs: orphans, old sessions, temporary files, dead reservations.

        forget(tenant, session id)  called before an old session goes; what it raises is let through

        Takes seconds where there are many sessions.   Raises DiskFull, DiskError.
        """

        def drop(tenant: str, session_id: str) -> int:
            forget(tenant, session_id)
            return self.drop(tenant, session_id)

        collector = Collector(
            self.sessions,
            self.objects,
            self.ledger,
            self._census,
            drop=drop,
            now_ms=self._now_ms,
        )
        return collector.collect(self.limits.ttl_ms)

    def prefetch(self, tenant: str, session_id: str) -> None:
        """Tell the system that a session's files will be read soon. Never raises, never waits."""
        if self._prefetches.acquire(blocking=False):
            try:
                self._prefetcher.submit(self._prefetch, tenant, session_id)
            except RuntimeError:  # closed
                self._prefetches.release()

    def _prefetch(self, tenant: str, session_id: str) -> None:
        try:
            manifest = None if is_tight() else self.sessions.head(tenant, session_id)
            room = PREFETCH_BYTES
            for link in links_of(manifest) if manifest is not None else ():
                kind, key = kind_and_key(link.name)
                with suppress(FileNotFoundError):
                    room -= self.objects.path(kind, key).stat().st_size
                    if room < 0:
                        break
                    self.objects.prefetch(kind, key)
            self._counters.add(prefetched_sessions=1)
        except Exception as error:  # a hint that is not taken
            log.debug("nothing is prefetched", session=session_id, error=str(error))
        finally:
            self._prefetches.release()

    def stats(self) -> dict[str, float]:
        """Sums of this process, and sizes of the folder as they are, by name.

        hits, misses, skipped, bad_files, prefetched_sessions   of fetches, files, prefetches
        tokens_ram, tokens_cache, tokens_disk, skipped_tokens   by where they came from
        bytes_cache, bytes_disk, seconds_saved                  read, and gained by it
        written_objects, written_bytes, evicted_objects, evicted_bytes, undeletable
        bytes, objects, sessions, reserved_bytes, quota_bytes   now; of all processes
        cache_bytes_per_s, disk_bytes_per_s                     of restores, as measured

        Raises DiskError.
        """
        totals = self.ledger.totals()
        speeds = self._loader.speeds.read()
        return self._counters.read() | {
            "bytes": totals.num_bytes,
            "objects": totals.num_objects,
            "sessions": totals.num_sessions,
            "reserved_bytes": self.ledger.reserved_bytes(),
            "quota_bytes": self.limits.quota_bytes,
            "cache_bytes_per_s": speeds["cache"],
            "disk_bytes_per_s": speeds["disk"],
        }

    def close(self) -> None:
        """Give back threads and connections; what is on the disk stays."""
        self._prefetcher.shutdown(wait=True, cancel_futures=True)
        self._loader.close()
        self.ledger.close()

    def _head(self, tenant: str, session_id: str) -> Manifest:
        manifest = self.sessions.head(tenant, session_id)
        if manifest is None:
            raise NoSession(tenant, session_id)
        return manifest


def stored_of(source: Source) -> Stored:
    """What the ledger will know of it."""
    return Stored(
        name_of(source.kind, source.key),
        source.tenant,
        file_bytes(source.payload_bytes),
        source.num_tokens,
        parent_name(source.parent),
    )
