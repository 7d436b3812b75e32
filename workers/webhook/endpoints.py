"""How many attempts one receiver may hold, so that a slow one never holds up the others.

At most PER_ENDPOINT attempts are under way to one host and port, and only one while it is slow.
What comes beyond that goes back to wait for its turn; turns come as fast as the receiver answers.
"""

from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import Final

PER_ENDPOINT: Final = 4
SLOW_S: Final = 2.0  # an endpoint is slow when its attempts take so long in the mean
WAIT_S_MIN: Final = 0.2  # for a turn
WAIT_S_MAX: Final = 60.0
MEAN_WEIGHT: Final = 0.3  # of the newest duration
FORGET_AT: Final = 1000  # endpoints remembered before idle ones are forgotten


@dataclass
class Endpoint:
    """in_flight: attempts under way; mean_s: how long one takes; full_until: no turn before."""

    in_flight: int = 0
    mean_s: float = 0.0
    full_until: float = 0.0


class Endpoints:
    """Every receiver that this worker has talked to lately."""

    def __init__(
        self, per_endpoint: int = PER_ENDPOINT, clock: Callable[[], float] = monotonic
    ) -> None:
        self.per_endpoint, self.clock = per_endpoint, clock
        self.known: dict[str, Endpoint] = {}

    def begin(self, name: str) -> float | None:
        """Take a place for an attempt: None when there was one, else seconds to wait for a turn."""
        if len(self.known) >= FORGET_AT:
            now = self.clock()
            self.known = {n: e for n, e in self.known.items() if e.in_flight or e.full_until > now}
        endpoint = self.known.setdefault(name, Endpoint())
        places = self.per_endpoint if endpoint.mean_s < SLOW_S else 1
        if endpoint.in_flight < places:
            endpoint.in_flight += 1
            return None
        now = self.clock()
        turn = max(now + WAIT_S_MIN, endpoint.full_until) + endpoint.mean_s / places
        endpoint.full_until = min(turn, now + WAIT_S_MAX)
        return endpoint.full_until - now

    def end(self, name: str, took_s: float) -> None:
        """Give the place back."""
        endpoint = self.known[name]
        assert endpoint.in_flight > 0, name
        endpoint.in_flight -= 1
        endpoint.mean_s += MEAN_WEIGHT * (took_s - endpoint.mean_s)
