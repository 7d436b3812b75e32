"""Which sequences run in the next step, and how many tokens of each.

One step mixes decodes (one token of each sequence that has computed all others) and prefill (a
chunk of some).

    add ──► waiting ──admit──► running ──remove──► (gone)
               ▲      takes memory │                gives it back
               ├─────preempt───────┤  keeps it
               └────start over─────┘  gives it back: only after an abandoned step (state_memory.py)

Memory is blocks of KV to the sequence's longest end and, where the model has recurrent layers, one
slot for their state. A sequence may get it with a known beginning (memory.py): then its first chunk
begins behind that.

Who is first: by rank, that is arrival plus the class's handicap (sequence.py). Waiting sequences
are admitted strictly in that order: a big one at the head is never passed by smaller ones, so it
gets its memory as soon as enough running ones have ended; preempted ones, which have theirs, go on
meanwhile. All decodes run in every step; what is
left of the step is prefill, in rank order.

Invariants, checked by check() after every step in the tests:
  1. a sequence is in exactly one of waiting, running; both are in rank order
  2. a running sequence holds all its memory, so that nothing running can fail for it; a waiting one
     holds all of it, if it was preempted, or none
  3. tokens of one step <= max_step_tokens, running sequences <= max_batch <= max_step_tokens
"""

from bisect import insort
from dataclasses import dataclass

from workers.engine.cost import StepCost
from workers.engine.memory import Memory
from workers.engine.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Scheduled:
    """Tokens [sequence.num_cached, end) of one sequence are computed in this step."""

    sequence: Sequence
    end: int

    @property
    def num_tokens(self) -> int:
        return self.end - self.sequence.num_cached

    @property
    def reaches_end(self) -> bool:
        """The step computes the newest token, so its logits give the next one."""
        return self.end == len(self.sequence.token_ids)


def rank_of(sequence: Sequence) -> tuple[int, int]:
    return sequence.rank


def tokens_to_cut(sequence: Sequence) -> int:
    """How far a chunk may go: to the next position at which its state is to be kept."""
    begin, end = sequence.num_cached, len(sequence.token_ids)
    if sequence.reuse is not None:
        for cut in sequence.reuse.cuts:
            if begin < cut < end:
                end = cut
    return end - begin


class Scheduler:
    """Pure: no clock, no arrays, no model. What steps cost comes in through `cost`."""

    def __init__(
        self,
        memory: Memory,
        cost: StepCost,
        *,
        max_batch: int,
        max_step_tokens: int,
        budget_ms: int,
        chunk: int | None = None,
    ) -> None:
        """chunk: prefill tokens of a step; None: as many as fit budget_ms by `cost`."""
        assert 1 <= max_batch <= max_step_tokens, (max_batch, max_step_tokens)
        self.memory = memory
        self.cost = cost
        self.max_batch = max_batch
        self.max_step_tokens = max_step_tokens
        self.budget_ms = budget_ms
        self.chunk = chunk
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self._num_added = 0

    def add(self, sequence: Sequence) -> None:
        """It waits; among equals of rank the one added first goes first."""
        self._num_added += 1
        sequence.rank = (sequence.rank[0], self._num_added)
        insort(self.waiting, sequence, key=rank_of)

    def remove(self, sequence: Sequence) -> None:
        """It has ended, or is somebody else's now: its memory is free."""
        line = self.running if sequence in self.running else self.waiting
        line.remove(sequence)
        self.memory.free(sequence)

    def preempt(self, sequence: Sequence) -> None:
        """It waits, so that others have its place in the batch, and goes on where it was."""
        self.running.remove(sequence)
        insort(self.waiting, sequence, key=rank_of)

    def start_over(self, sequence: Sequence) -> None:
        """A running one gives all its memory back and waits for it again, in its rank."""
        self.running.remove(sequence)
        sequence.num_cached = 0
        self.memory.free(sequence)
        insort(self.waiting, sequence, key=rank_of)

    def can_ever_run(self, sequence: Sequence) -> bool:
        """False: its longest end does not fit even into an empty engine."""
        has_room = sequence.max_length > sequence.num_prompt
        return has_room and sequence.num_blocks_wanted <= self.memory.pool.num_blocks

    def schedule(self) -> list[Scheduled]:
        """The next step: decodes first, then prefill. Empty only when nothing runs or waits."""
        self._admit()
        decodes = [Scheduled(s, len(s.token_ids)) for s in self.running if s.num_uncached == 1]
        if len(decodes) == len(self.running):
            return decodes
        room = self.max_step_tokens - len(decodes)
        if self.chunk is None:
            room = self.cost.chunk(self.budget_ms, len(decodes), room)
        else:
            room = min(room, self.chunk)
        return decodes + self._prefill(room)

    def _admit(self) -> None:
        while self.waiting and len(self.running) < self.max_batch:
            sequence = self._next()
            if sequence is None:
                return
            self.waiting.remove(sequence)
            insort(self.running, sequence, key=rank_of)

    def _next(self) -> Sequence | None:
        """Who runs next, its memory reserved: the head of the line.

        While the head waits for memory, everybody behind it waits too but who has his already.
        """
        head = self.waiting[0]
        assert self.can_ever_run(head), f"{head.id} must be refused, not scheduled"
        if head.blocks or self.memory.reserve(head):
            return head
        for sequence in self.waiting:
            if sequence.blocks:
                return sequence
        return None

    def _prefill(self, room: int) -> list[Scheduled]:
        chunks: list[Scheduled] = []
        for sequence in self.running:
            if room > 0 and sequence.num_uncached > 1:
                num_tokens = min(room, sequence.num_uncached, tokens_to_cut(sequence))
                chunks.append(Scheduled(sequence, sequence.num_cached + num_tokens))
                room -= num_tokens
        return chunks

    def check(self) -> None:
        """Assert the invariants but those of memory, which Memory.check holds."""
        ids = [sequence.id for sequence in self.waiting + self.running]
        assert len(set(ids)) == len(ids), ids
        for line in (self.waiting, self.running):
            assert line == sorted(line, key=rank_of), [sequence.id for sequence in line]
        assert len(self.running) <= self.max_batch, len(self.running)
        for sequence in self.running:
            assert sequence.blocks, sequence.id
            assert sequence.num_cached < len(sequence.token_ids) <= sequence.max_length, sequence.id
