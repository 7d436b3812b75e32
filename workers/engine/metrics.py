"""How long a request waited and how fast it went: the definitions, in one place.

    arrival ──queue time──► first scheduled step ──► first output token ──(n - 1) TPOT──► last one
    └──────────────────── TTFT ──────────────────────────────┘

What an owner did not see itself it does not report: after a resume, queue time and TTFT are None,
and TPOT is that of the tokens made since.
"""

from collections import deque
from dataclasses import dataclass
from typing import Final

RATE_WINDOW_MS: Final = 10_000


@dataclass(slots=True)
class Times:
    """When things happened to one sequence, Unix ms; None: not yet."""

    arrival_ms: int
    scheduled_ms: int | None = None
    first_token_ms: int | None = None
    last_token_ms: int | None = None
    num_tokens: int = 0
    resumed: bool = False

    def scheduled(self, now_ms: int) -> None:
        """A step takes the sequence up; only the first counts."""
        if self.scheduled_ms is None:
            self.scheduled_ms = now_ms

    def token(self, now_ms: int) -> None:
        """An output token was made."""
        if self.first_token_ms is None:
            self.first_token_ms = now_ms
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
