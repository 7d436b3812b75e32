"""What came through a pool lately, by class: how long answers are, and tokens a second.

Counts only grow; whoever reports looks at them now and then. Nothing here reads a clock.
"""

from collections.abc import Mapping
from math import exp
from typing import Final

OUTPUT_FADE: Final = 0.9  # of the mean output: the last ten or so that ended count
LATELY_MS: Final = 30_000.0  # of the past that rates count, about
UNSURE: Final = 1 / 3  # of it: what was seen shorter is taken for less


class Lately:
    """One pool's.   output_tokens: of an answer, by class, a fading mean"""

    def __init__(self) -> None:
        self.output_tokens: dict[str, float] = {}
        self._written: dict[str, int] = {}  # tokens of all answers that ended
        self._prompts, self._outputs = Rate(), Rate()

    def ended(self, sla: str, tokens: int) -> None:
        """One of this class has finished, with an answer of so many tokens."""
        mean = self.output_tokens.get(sla, float(tokens))
        self.output_tokens[sla] = OUTPUT_FADE * mean + (1 - OUTPUT_FADE) * tokens
        self._written[sla] = self._written.get(sla, 0) + tokens

    def rates(
        self, prefilled: Mapping[str, int], now_ms: float
    ) -> tuple[dict[str, float], dict[str, float]]:
        """Tokens a second of prompts and of answers; prefilled: of prompts, in all."""
        return self._prompts.look(prefilled, now_ms), self._outputs.look(self._written, now_ms)


class Rate:
    """So many a second of each class, of a count that is looked at now and then."""

    def __init__(self) -> None:
        self._seen: dict[str, int] = {}
        self._rates: dict[str, float] = {}
        self._weight = 0.0  # of all looks; 1 after a while
        self._at_ms: float | None = None

    def look(self, counts: Mapping[str, int], now_ms: float) -> dict[str, float]:
        """The rates, with what has come since the last look."""
        passed_ms = 0.0 if self._at_ms is None else now_ms - self._at_ms
        self._at_ms = now_ms
        if passed_ms > 0:
            fade = exp(-passed_ms / LATELY_MS)
            self._weight = fade * self._weight + 1 - fade
            for name, count in counts.items():
                rate = 1000 * (count - self._seen.get(name, 0)) / passed_ms
                self._rates[name] = fade * self._rates.get(name, 0.0) + (1 - fade) * rate
        self._seen = dict(counts)
        whole = max(self._weight, UNSURE)
        return {name: round(rate / whole, 3) for name, rate in self._rates.items()}
