"""The object store behind one folder of sessions: what it takes, what it counts, how fast it is.

    push  ── objects that are not there ─► then the manifest that names them        push.py
    pull  ── newest manifest ─► objects, checked ─► the folder, under its own names  pull.py
    sweep ── what no manifest names, and manifests nobody used, go                   sweep.py

Nothing of it is needed to answer a request: what cannot be had is computed again.
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from kv_tier.chain import Chain
from kv_tier.remote.bucket import Bucket
from kv_tier.remote.known import Known
from kv_tier.remote.places import salt_of
from kv_tier.tier import KvTier, wall_ms

Item = TypeVar("Item")
Value = TypeVar("Value")

THREADS: Final = 8  # connections at once
IN_FLIGHT_BYTES: Final = 256 << 20  # of objects that are on their way at once
FIRST_GUESS: Final = 100e6  # bytes per second
WEIGHT: Final = 0.3  # of a new measurement
WORTH_MEASURING: Final = 1 << 20
NAMES: Final = (
    *("store_pushed_sessions", "store_sent_objects", "store_sent_bytes", "store_sent_s"),
    *("store_fetched_objects", "store_fetched_bytes", "store_fetched_s"),
    *("store_known_objects", "store_damaged", "store_failures", "store_swept_objects"),
)


class Remote:
    """Thread-safe; any number of processes at once."""

    def __init__(
        self,
        bucket: Bucket,
        tier: KvTier,
        *,
        bytes_per_s: float = 0.0,
        tenant_bytes: int = 0,
        now_ms: Callable[[], int] = wall_ms,
        rest: Callable[[float], object] = time.sleep,
    ) -> None:
        """bytes_per_s: at most, of what is sent; tenant_bytes: of one tenant; 0: no limit

        Raises DiskFull, DiskError.
        """
        self.bucket, self.tier = bucket, tier
        self.known = Known(tier.root, bucket.url)
        self.now_ms, self.rest = now_ms, rest
        self.bytes_per_s, self.tenant_bytes = bytes_per_s, tenant_bytes
        self.speed = FIRST_GUESS  # of what is fetched
        self.usage: dict[str, int] = {}  # bytes in the store by tenant, as of usage_ms (quota.py)
        self.usage_ms = 0
        self._counts = dict.fromkeys(NAMES, 0.0)
        self._guard = threading.Lock()
        self._salt: bytes | None = None
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="kv-store")

    def chain(self, tenant: str, fingerprint: bytes) -> Chain:
        """The names that the fleet gives to this tenant's tokens.   Raises StoreError."""
        if self._salt is None:
            self._salt = salt_of(self.bucket)
        return Chain(self._salt, tenant, fingerprint)

    def each(self, work: Callable[[Item], Value], items: Iterable[Item]) -> list[Value]:
        """work(item) of all, some at once. Raises what the first of them raised."""
        return list(self._threads.map(work, items))

    def count(self, **amounts: float) -> None:
        """Without "store_" before the names."""
        with self._guard:
            for name, amount in amounts.items():
                assert f"store_{name}" in self._counts, name
                self._counts[f"store_{name}"] += amount

    def measured(self, num_bytes: int, seconds: float) -> None:
        """So many bytes were fetched in so long."""
        if num_bytes >= WORTH_MEASURING and seconds > 0:
            with self._guard:
                self.speed += WEIGHT * (num_bytes / seconds - self.speed)

    def stats(self) -> dict[str, float]:
        """Sums of this process, by name."""
        with self._guard:
            return dict(self._counts)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        self.known.close()


def groups_of(items: Sequence[Item], size_of: Callable[[Item], int]) -> Iterator[list[Item]]:
    """Items in order, so many together as IN_FLIGHT_BYTES allows, one at least."""
    group: list[Item] = []
    num_bytes = 0
    for item in items:
        if group and num_bytes + size_of(item) > IN_FLIGHT_BYTES:
            yield group
            group, num_bytes = [], 0
        group.append(item)
        num_bytes += size_of(item)
    if group:
        yield group
