"""What a step costs on this machine, learned while it runs, and how much prefill therefore fits.

A step of T tokens is taken to cost fixed + per_token * T milliseconds: reading the weights, then
computing. The line goes through two points, each a fading mean: steps that only decode, and steps
that prefill.

    ms
    |            x  steps with prefill (mean T, mean ms)
    |       .
    |  x         steps of decodes only
    +-----------------------------  T

Nothing here touches a result: law one holds for every way of cutting a prompt.
"""

from typing import Final

FADE: Final = 0.8  # weight of the past when a new step is seen: the last five or so count
FIRST_CHUNK: Final = 64  # tokens, while nothing is known
SMALLEST_CHUNK: Final = 16  # tokens; however slow the machine, a prefill moves


class FadingMean:
    """Mean tokens and mean milliseconds of one kind of step; seen is False until the first."""

    def __init__(self) -> None:
        self.seen = False
        self.num_tokens = 0.0
        self.ms = 0.0

    def add(self, num_tokens: int, ms: int) -> None:
        fade = FADE if self.seen else 0.0
        self.num_tokens = fade * self.num_tokens + (1 - fade) * num_tokens
        self.ms = fade * self.ms + (1 - fade) * ms
        self.seen = True


class StepCost:
    """The online estimate of one engine."""

    def __init__(self) -> None:
        self._decode = FadingMean()
        self._prefill = FadingMean()

    def observe(self, num_decodes: int, num_prefill: int, ms: int) -> None:
        """A step of so many decoded and prefilled tokens took so long."""
        mean = self._prefill if num_prefill else self._decode
        mean.add(num_decodes + num_prefill, max(0, ms))

    @property
    def prefill_tokens_per_s(self) -> float:
        """Of steps that prefill; 0.0 while none was seen."""
        mean = self._prefill
        return 1000 * mean.num_tokens / mean.ms if mean.ms > 0 else 0.0

    def line(self) -> tuple[float, float]:
        """(fixed ms, ms per token), neither negative."""
        low, high = self._decode, self._prefill
        if not high.seen:
            high = low
        if not high.seen:
            return 0.0, 0.0
        per_token = high.ms / high.num_tokens
        if low.seen and high.num_tokens > low.num_tokens:
            per_token = min(per_token, (high.ms - low.ms) / (high.num_tokens - low.num_tokens))
        per_token = max(0.0, per_token)
        return high.ms - per_token * high.num_tokens, per_token

    def chunk(self, budget_ms: int, num_decodes: int, longest: int) -> int:
        """Prefill tokens, at most `longest`, that a step of num_decodes decodes should carry.

        The step should take budget_ms. Where reading the weights alone takes most of that, a
        prefill may still add half of the step's own time: decodes then slow down by half, instead
        of the prefill taking for ever.
        """
        if not (self._prefill.seen or self._decode.seen):
            return min(longest, FIRST_CHUNK)
        fixed_ms, per_token_ms = self.line()
        base_ms = fixed_ms + per_token_ms * num_decodes
        room_ms = max(budget_ms - base_ms, base_ms / 2)
        if room_ms >= per_token_ms * longest:
            return longest
        return min(longest, max(SMALLEST_CHUNK, int(room_ms / per_token_ms)))
