"""When a webhook is tried again: attempt number to delay, over the configured schedule.

    attempt   1    2    3    4     5    6    7     8     9     10
    default   now  5 s  5 m  30 m  2 h  5 h  10 h  14 h  20 h  24 h    75 h in the mean, then dead

Each delay is drawn evenly between half and one and a half of its entry: receivers that went down
together are not all asked again at the same moment, and the whole takes as long as configured.
"""

import random
from collections.abc import Callable, Sequence
from typing import Final

RETRY_AFTER_S_MAX: Final = 86_400.0  # a receiver may ask for patience, not for oblivion
JITTER: Final = 0.5


def parse_schedule(text: str) -> tuple[float, ...]:
    """Seconds before attempt 2, 3, ... from a comma-separated list. Raises ValueError in words."""
    try:
        delays = tuple(float(part) for part in text.split(",") if part.strip())
    except ValueError:
        delays = (-1.0,)
    if not all(0 <= delay < float("inf") for delay in delays):
        raise ValueError(f"webhook_retries: {text!r} is no comma-separated list of seconds")
    return delays


def delay_s(
    tries: int,
    schedule: Sequence[float],
    retry_after_s: float | None = None,
    draw: Callable[[], float] = random.random,
) -> float | None:
    """Seconds until the next attempt after `tries` failed ones (>= 1); None: no more attempts.

    retry_after_s  what the receiver asked for: never sooner than that
    draw           gives numbers in [0, 1)
    """
    assert tries >= 1, tries
    if tries > len(schedule):
        return None
    delay = schedule[tries - 1] * (1 - JITTER + 2 * JITTER * draw())
    return max(delay, min(retry_after_s or 0.0, RETRY_AFTER_S_MAX))
