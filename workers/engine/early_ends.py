"""Ends that need no step: refused when it came, cancelled, too late, or its journal is complete."""

from collections import deque
from collections.abc import Mapping

from workers.engine.ending import (
    CANCELLED,
    EXPIRED,
    Ending,
    bad_tokens,
    finished,
    too_large,
)
from workers.engine.scheduler import Scheduler
from workers.engine.sequence import Sequence


class EarlyEnds:
    """Of one engine. cancel may be called from any thread.

    known  of sequences that never reach the scheduler, by request id
    """

    def __init__(self, scheduler: Scheduler, vocab_size: int, num_blocks: int) -> None:
        self.known: dict[str, Ending] = {}
        self._scheduler, self._vocab_size, self._num_blocks = scheduler, vocab_size, num_blocks
        self._cancelled: deque[str] = deque()

    def of_new(self, sequence: Sequence) -> Ending | None:
        """The end of one that needs no step; it is due from now on."""
        if sequence.finish_reason is not None:
            ending: Ending | None = finished(sequence.finish_reason)
        else:
            ending = bad_tokens(sequence, self._vocab_size)
            if ending is None and not self._scheduler.can_ever_run(sequence):
                ending = too_large(sequence, self._num_blocks)
        if ending is not None:
            self.known[sequence.id] = ending
        return ending

    def cancel(self, request_id: str) -> None:
        """It is due, if it is here."""
        self._cancelled.append(request_id)

    @property
    def has_cancelled(self) -> bool:
        return bool(self._cancelled)

    def due(self, sequences: Mapping[str, Sequence], now_ms: int) -> dict[str, Ending]:
        """Whatever ends without a step now, by request id."""
        endings = self.known.copy()
        for sequence in sequences.values():
            deadline_ms = sequence.request.deadline_ms
            if deadline_ms is not None and now_ms >= deadline_ms:
                endings.setdefault(sequence.id, EXPIRED)
        while self._cancelled:
            request_id = self._cancelled.popleft()
            if request_id in sequences:
                endings.setdefault(request_id, CANCELLED)
        return endings
