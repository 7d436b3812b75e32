"""How long a request waited and how fast it went: the definitions, in one place.

    arrival ──queue time──► first scheduled step ──► first output token ──(n - 1) TPOT──► last one
    └──────────────────── TTFT ──────────────────────────────┘

What an owner did not see itself it does not report: after a resume, queue time and TTFT are None,
and TPOT is that of the tokens made since. ITL is the time from one token to the next.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from workers.histograms import OF_CLASS, OF_POOL

RATE_WINDOW_MS: Final = 10_000
STEP_FADE: Final = 0.9  # of the mean duration of a step: the last ten or so count


@dataclass(slots=True)
class Times:
    """When things happened to one sequence, Unix ms; None: not yet."""

    arrival_ms: int
    scheduled_ms: int | None = None
    first_token_ms: int | None = None
    last_token_ms: int | None = None
    num_tokens: int = 0
    resumed: bool = False
    gap_ms: int | None = None  # between the last two tokens

    def scheduled(self, now_ms: int) -> None:
        """A step takes the sequence up; only the first counts."""
        if self.scheduled_ms is None:
            self.scheduled_ms = now_ms

    def token(self, now_ms: int) -> None:
        """An output token was made."""
        if self.last_token_ms is None:
            self.first_token_ms = now_ms
        else:
            self.gap_ms = max(0, now_ms - self.last_token_ms)
        self.last_token_ms = now_ms
        self.num_tokens += 1

    @property
    def queue_ms(self) -> float | None:
        return self._since_arrival(self.scheduled_ms)

    @property
    def ttft_ms(self) -> float | None:
        return self._since_arrival(self.first_token_ms)

    @property
    def tpot_ms(self) -> float | None:
        if self.num_tokens < 2 or self.first_token_ms is None or self.last_token_ms is None:
            return None
        return (self.last_token_ms - self.first_token_ms) / (self.num_tokens - 1)

    def _since_arrival(self, then_ms: int | None) -> float | None:
        if self.resumed or then_ms is None:
            return None
        return float(max(0, then_ms - self.arrival_ms))  # a clock set back gives 0, not less


class TokenRate:
    """Output tokens per second over the last ten seconds."""

    def __init__(self) -> None:
        self._steps: deque[tuple[int, int]] = deque()
        self._total = 0

    def add(self, now_ms: int, num_tokens: int) -> None:
        """A step ended and made so many tokens."""
        self._steps.append((now_ms, num_tokens))
        self._total += num_tokens
        self._forget(now_ms)

    def tokens_per_s(self, now_ms: int) -> float:
        self._forget(now_ms)
        return self._total * 1000 / RATE_WINDOW_MS

    def _forget(self, now_ms: int) -> None:
        while self._steps and self._steps[0][0] <= now_ms - RATE_WINDOW_MS:
            self._total -= self._steps.popleft()[1]


class Histogram:
    """Counts of one quantity."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = list(bounds)
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def told(self) -> list[float]:
        """As workers/histograms.py says."""
        return [*(float(count) for count in self.counts), round(self.total, 6)]


class Meter:
    """What an engine counts for /metrics, since it began; times of requests by class.

    step_ms  fading mean duration of a step       batch  sequences of the last one
    """

    def __init__(self) -> None:
        self.step_ms = 0.0
        self.batch = 0
        self._histograms: dict[str, Histogram] = {}
        self._itl: dict[str, Histogram] = {}  # by class: the one that each token needs

    def step(self, ms: float, num_sequences: int) -> None:
        """A step of so many sequences took so long."""
        fade = STEP_FADE if self.batch > 0 else 0.0
        self.step_ms = fade * self.step_ms + (1 - fade) * ms
        self.batch = num_sequences
        self._of("step", "").observe(ms / 1000)
        self._of("batch", "").observe(float(num_sequences))

    def token(self, sla: str, times: Times) -> None:
        """A sequence of this class has got a token."""
        if times.gap_ms is not None:
            found = self._itl.get(sla)
            if found is None:
                found = self._itl[sla] = self._of("itl", sla)
            found.observe(times.gap_ms / 1000)

    def finished(self, sla: str, times: Times, now_ms: int, lengths: tuple[int, int]) -> None:
        """A sequence of this class has finished; what is not known of it counts nowhere.

        lengths: tokens of prompt and answer
        """
        self._of("prompt", sla).observe(float(lengths[0]))
        self._of("output", sla).observe(float(lengths[1]))
        self._times("queue", sla, times.queue_ms)
        self._times("ttft", sla, times.ttft_ms)
        self._times("tpot", sla, times.tpot_ms)
        self._times("e2e", sla, float(max(0, now_ms - times.arrival_ms)))
        first, last, begun = times.first_token_ms, times.last_token_ms, times.scheduled_ms
        if first is not None and last is not None and not times.resumed:
            self._times("decode", sla, float(last - first))
            if begun is not None:
                self._times("prefill", sla, float(max(0, first - begun)))

    def told(self) -> dict[str, list[float]]:
        """By quantity and class (workers/histograms.py)."""
        return {name: histogram.told() for name, histogram in self._histograms.items()}

    def _times(self, quantity: str, sla: str, ms: float | None) -> None:
        if ms is not None:
            self._of(quantity, sla).observe(ms / 1000)

    def _of(self, quantity: str, sla: str) -> Histogram:
        name = f"{quantity} {sla}" if sla else quantity
        found = self._histograms.get(name)
        if found is None:
            shape = OF_CLASS[quantity] if sla else OF_POOL[quantity]
            found = self._histograms[name] = Histogram(shape.bounds)
        return found
