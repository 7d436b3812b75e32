"""What was wished for items that a worker holds and its engine has not yet, and their classes."""

import msgspec

from workers.wire import Request
from workers.worker_store import Claimed


class Wishes:
    """Of one worker. Whoever lets an item go calls forget.

    cancelled  while a restorer has them: their end
    moving     likewise: to which pool
    promoted   to which class, of whatever is held
    """

    def __init__(self) -> None:
        self.cancelled: set[str] = set()
        self.moving: dict[str, str] = {}
        self.promoted: dict[str, str] = {}

    def take(self, job_id: str) -> tuple[bool, str | None]:
        """A restorer has it no more: whether its end was wished; another pool."""
        is_cancelled = job_id in self.cancelled
        self.cancelled.discard(job_id)
        return is_cancelled, self.moving.pop(job_id, None)

    def forget(self, job_id: str) -> None:
        self.take(job_id)
        self.promoted.pop(job_id, None)

    def class_of(self, item: Claimed) -> str | None:
        """Its class now; None: what the store holds of it cannot be read."""
        claimed_as = item.request.sla if item.request is not None else None
        return self.promoted.get(item.job_id, claimed_as)

    def classed(self, request: Request) -> Request:
        """With the class that it was given while a restorer had it."""
        sla = self.promoted.get(request.id, request.sla)
        return request if sla == request.sla else msgspec.structs.replace(request, sla=sla)
