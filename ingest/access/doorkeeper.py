"""Whether the HTTP door takes a request now: by what its class promises, and by how much waits.

A refusal is 429 with a Retry-After that is predicted, not made up (router/admission.py). What was
taken since the last look at the node counts as waiting, so that a burst is not taken on one look.
"""

import time
from collections import Counter
from threading import Lock
from typing import Final

from ingest.errors import ApiError
from ingest.health.pulse import Pulse, take_pulse
from router.not_now import TOO_MUCH, ask_again, class_is_full
from router.placement import Plan, place, shown_ms
from router.pools import PoolView, Wanted, wanted_of
from router.pressure import is_too_much, of_share, shared_pressure
from router.sight import Sight
from workers.promises import pressure
from workers.settings import Settings
from workers.store import Store
from workers.wire import Request

PULSE_AGE_S: Final = 0.25  # how old a look at queues and pools may be
RETRY_FULL_S: Final = 10  # where nothing can be predicted


class Doorkeeper:
    """One for the process; its methods may be called from any thread, and ask the store."""

    def __init__(self, settings: Settings, store: Store) -> None:
        self.store, self.table, self.max_queue = store, settings.classes, settings.max_queue
        self.sight = Sight(store, settings.model)
        self.taken: Counter[str] = Counter()  # by class, since the last look
        self._lock = Lock()
        self._pulse: Pulse | None = None
        self._pulse_at = float("-inf")

    def pulse(self) -> Pulse:
        """A look at the node that is at most PULSE_AGE_S old."""
        with self._lock:
            now = time.monotonic()
            if self._pulse is None or now - self._pulse_at > PULSE_AGE_S:
                self._pulse, self._pulse_at = take_pulse(self.store), now
                self.sight.forget()
                self.taken.clear()
            return self._pulse

    def views(self) -> tuple[PoolView, ...]:
        with self._lock:
            return self.sight.views()

    def longest(self) -> int | None:
        """Tokens of the longest sequence that a pool holds which was ready lately; None: none."""
        with self._lock:
            return self.sight.longest()

    def check(self, request: Request) -> None:
        """Raises ApiError: 429 now, 400 for ever."""
        pulse, views = self.pulse(), self.views()
        session = self.store.session(request.session) if request.session else {}
        wanted, now_ms = wanted_of(request, session), request.arrival_ms
        waiting = {sla: pulse.streams[sla] + self.taken[sla] for sla in self.table.names}
        own = of_share(waiting, pulse.share)
        plan = place(wanted, session.get("pool"), views, self.table, now_ms, backlog=own)
        if is_too_much(plan):
            if self.fleet_takes(request.sla):
                return
            raise overloaded(plan)
        if plan.kind == "refuse" and not self.fits_elsewhere(wanted):
            code = "too_large" if plan.field == "max_tokens" else "impossible_deadline"
            raise ApiError(400, f"{plan.field}: {plan.reason}", param=plan.field, code=code)
        most = self.table[request.sla].max_queue or self.max_queue
        waiting[request.sla] += queued(request.sla, views) + pulse.for_session
        if waiting[request.sla] >= most:
            share = pulse.share
            told = shared_pressure(wanted, views, self.table, now_ms, waiting, most, share)
            raise queue_full(waiting[request.sla], told.retry_ms)

    def fleet_takes(self, sla: str) -> bool:
        """Whether a quicker node says that one more of the class would have what it promises."""
        told = pressure(self.store, sla) if self.store.keys.node else None
        return told is not None and told.waiting < told.most

    def fits_elsewhere(self, wanted: Wanted) -> bool:
        """Whether another node of the fleet holds what none of ours does."""
        here = self.sight.longest_here()
        return here is not None and here < wanted.num_tokens <= (self.longest() or 0)

    def took(self, sla: str) -> None:
        """A request of this class was accepted."""
        with self._lock:
            self.taken[sla] += 1


def queued(sla: str, views: tuple[PoolView, ...]) -> int:
    """Requests of a class that wait in the queues of the pools."""
    return sum(other.sla == sla for view in views for other in view.queue)


def overloaded(plan: Plan) -> ApiError:
    """Too late for the promise."""
    retry_ms = plan.retry_ms or 0.0
    reason = f"{plan.reason}; it would be taken in {shown_ms(retry_ms)}"
    return ApiError(429, reason, code="overloaded", retry_after_ms=retry_ms)


def queue_full(waiting: int, retry_ms: float) -> ApiError:
    """As many wait as may."""
    wait_ms = retry_ms or 1000 * RETRY_FULL_S
    reason = ask_again(class_is_full(waiting), wait_ms)
    return ApiError(429, reason, code="queue_full", retry_after_ms=wait_ms)


def too_much(status: str, retry_ms: int) -> ApiError:
    """Whoever asks has had what it may ask for. status: of TOO_MUCH."""
    reason = ask_again(TOO_MUCH[status], retry_ms)
    code = "rate_limited" if status == "key_limited" else status
    return ApiError(429, reason, code=code, retry_after_ms=retry_ms)
