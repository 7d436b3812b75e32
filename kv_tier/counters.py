"""What the tier did since this process began, in numbers."""

import threading
from collections import Counter
from typing import Final

NAMES: Final = (
    "hits",
    "misses",
    "skipped",
    "skipped_tokens",
    "bad_files",
    "prefetched_sessions",
    "tokens_ram",
    "tokens_cache",
    "tokens_disk",
    "bytes_cache",
    "bytes_disk",
    "seconds_saved",
    "written_objects",
    "written_bytes",
    "evicted_objects",
    "evicted_bytes",
    "undeletable",
)


class Counters:
    """Sums by name. Thread-safe."""

    def __init__(self) -> None:
        self._sums: Counter[str] = Counter(dict.fromkeys(NAMES, 0))
        self._guard = threading.Lock()

    def add(self, **amounts: float) -> None:
        """Amounts may be fractions: of seconds, say."""
        with self._guard:
            for name, amount in amounts.items():
                assert name in self._sums, name
                self._sums[name] += amount  # type: ignore[assignment]  # Counter is typed for int

    def read(self) -> dict[str, float]:
        with self._guard:
            return dict(self._sums)
