"""Files are opened, brought into RAM and checked by a few threads; how fast that goes is measured.

A disk is quickest with two to four reads at once. They and the checksums run without the GIL, so
the engine's thread is not held up; what of it takes the GIL is one task a thread, not one a file,
for handing many small tasks from thread to thread took longer than the tasks.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Literal, TypeVar

from kv_tier.beginning import Piece, piece_name
from kv_tier.files import DiskError
from kv_tier.format import CorruptFile
from kv_tier.objects import ObjectStore
from kv_tier.open_object import Missing, OpenObject
from kv_tier.page_cache import is_cached
from kv_tier.prefix import Sizes

Tier = Literal["cache", "disk"]
Item = TypeVar("Item")
Value = TypeVar("Value")
Failure = Missing | CorruptFile | DiskError

READERS: Final = 4
FIXED_S: Final = 0.001  # of a restore, however small
FIRST_GUESS: Final[Mapping[Tier, float]] = {"cache": 4e9, "disk": 1e9}  # bytes per second
WEIGHT: Final = 0.3  # of a new measurement
WORTH_MEASURING: Final = 1 << 20  # bytes; less says more of the fixed costs
FORGET: Final = 1.1  # each skipped restore makes us believe a slow disk a little less


class Speeds:
    """Bytes per second of restores, by where they come from: a moving mean. Thread-safe."""

    def __init__(self) -> None:
        self._mean: dict[Tier, float] = dict(FIRST_GUESS)
        self._guard = threading.Lock()

    def measured(self, tier: Tier, num_bytes: int, seconds: float) -> None:
        """One restore of one tier."""
        if num_bytes >= WORTH_MEASURING and seconds > 0:
            with self._guard:
                self._mean[tier] += WEIGHT * (num_bytes / seconds - self._mean[tier])

    def skipped(self) -> None:
        """Nothing was measured, for it seemed too slow: one slow moment must not last for ever."""
        with self._guard:
            for tier, guess in FIRST_GUESS.items():
                self._mean[tier] = max(self._mean[tier], min(guess, self._mean[tier] * FORGET))

    def seconds(self, num_bytes: Mapping[Tier, int]) -> float:
        """What a restore is likely to take."""
        with self._guard:
            return FIXED_S + sum(n / self._mean[tier] for tier, n in num_bytes.items())

    def read(self) -> dict[Tier, float]:
        with self._guard:
            return dict(self._mean)


class Loader:
    """Thread-safe."""

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects
        self._threads = ThreadPoolExecutor(READERS, thread_name_prefix="kv-read")
        self.speeds = Speeds()

    def open(
        self, pieces: Sequence[Piece], sizes: Sizes
    ) -> tuple[dict[bytes, OpenObject], dict[bytes, Failure]]:
        """By name: those whose header is right, not verified yet; and what is wrong with others."""

        def open_one(piece: Piece) -> OpenObject:
            kind, key, num_tokens = piece
            payload_bytes = sizes.payload_bytes(kind, num_tokens)
            opened = self._objects.open(kind, key, sizes.fingerprint, payload_bytes)
            if opened.num_tokens != num_tokens:
                opened.close()
                raise CorruptFile(opened.path, f"{opened.num_tokens} tokens, not {num_tokens}")
            return opened

        return self._each(open_one, {piece_name(one): one for one in pieces})

    def verify(
        self, opened: Mapping[bytes, OpenObject], num_bytes: Mapping[Tier, int]
    ) -> dict[bytes, Failure]:
        """Bring them in and check them; by name what is wrong. Speeds are measured.

        num_bytes  of them, by where they come from: as bytes_by_tier said before
        """
        begin = time.perf_counter()
        _, failures = self._each(verify_one, opened)
        seconds = time.perf_counter() - begin
        for tier, part in num_bytes.items():
            if part == sum(num_bytes.values()):  # a mixture says nothing of either
                self.speeds.measured(tier, part, seconds)
        return failures

    def _each(
        self, work: Callable[[Item], Value], items: Mapping[bytes, Item]
    ) -> tuple[dict[bytes, Value], dict[bytes, Failure]]:
        """work(item) for all of them, by a few threads; by name what it gave, or what is wrong."""
        values: dict[bytes, Value] = {}
        failures: dict[bytes, Failure] = {}
        left = iter(items.items())  # of a dict: each item comes once, whichever thread asks

        def run() -> None:
            for name, item in left:
                try:
                    values[name] = work(item)
                except (Missing, CorruptFile, DiskError) as failure:
                    # a traceback would keep the mapping alive until the next garbage collection
                    failures[name] = failure.with_traceback(None)

        for task in [self._threads.submit(run) for _ in range(min(READERS, len(items)))]:
            task.result()
        return values, failures

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


def verify_one(opened: OpenObject) -> None:
    """Raises CorruptFile, DiskError."""
    try:
        opened.verify()
    except OSError as error:  # no room for the mapping, say
        raise DiskError(opened.path, error) from error


def tier_of(opened: OpenObject) -> Tier:
    """Where its payload would come from now."""
    cached = is_cached(opened.fd, opened.payload_offset, opened.payload_bytes)
    return "cache" if cached else "disk"


def bytes_by_tier(
    opened: Mapping[bytes, OpenObject], tiers: Mapping[bytes, Tier]
) -> dict[Tier, int]:
    """Payload bytes by where they come from."""
    sums: dict[Tier, int] = {"cache": 0, "disk": 0}
    for name, one in opened.items():
        sums[tiers[name]] += one.payload_bytes
    return sums
