"""What the tier did since this process began, in numbers."""

import threading
from collections import Counter


class Counters:
    """Sums by name. Thread-safe."""

    def __init__(self) -> None:
        self._sums: Counter[str] = Counter()
        self._guard = threading.Lock()

    def add(self, **amounts: float) -> None:
        """Amounts may be fractions: of seconds, say."""
        with self._guard:
            for name, amount in amounts.items():
                self._sums[name] += amount  # type: ignore[assignment]  # Counter is typed for int

    def read(self) -> dict[str, float]:
        with self._guard:
            return dict(self._sums)
