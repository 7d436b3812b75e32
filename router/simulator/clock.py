"""Virtual time: what is to happen, in order of its moment, then in the order it was asked for.

So a run is the same whenever its seed is the same. Time is a float of milliseconds from 0.
"""

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Final

FOREVER: Final = float("inf")


class Clock:
    """num_events: how many things have happened."""

    def __init__(self) -> None:
        self.now_ms = 0.0
        self.num_events = 0
        self._number = 0
        self._heap: list[tuple[float, int, Callable[[], None]]] = []

    def at(self, when_ms: float, do: Callable[[], None]) -> None:
        """Not in the past; what has been asked for cannot be taken back: `do` looks for itself."""
        assert when_ms >= self.now_ms, f"{when_ms} is before {self.now_ms}"
        self._number += 1
        heappush(self._heap, (when_ms, self._number, do))

    def after(self, ms: float, do: Callable[[], None]) -> None:
        self.at(self.now_ms + ms, do)

    def run(
        self,
        until_ms: float = FOREVER,
        stop: Callable[[], bool] = lambda: False,
        watch: Callable[[], None] = lambda: None,
    ) -> None:
        """Everything up to until_ms, in order; ends early when nothing is left, or on stop().

        watch: called after each event
        """
        while self._heap and self._heap[0][0] <= until_ms and not stop():
            self.now_ms, _, do = heappop(self._heap)
            self.num_events += 1
            do()
            watch()
