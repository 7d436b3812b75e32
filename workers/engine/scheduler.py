"""Which sequences run in the next step, and how many tokens of each.

One step mixes decodes (one token of each sequence that has computed all others) and prefill (a
chunk of some); how much of it, by what was promised, is pace.py's.

    add ──► line ──admit──► running ──remove──► (gone)
              ▲  takes memory  │ ▲
              │                │ └── displaced: keeps its memory, for a place in the batch
              │                └──► suspended: its memory goes into files, for somebody's memory
              └──start over───┘ gives it back: only after an abandoned step (state_memory.py)

Memory is blocks of KV to the sequence's longest end and, where the model has recurrent layers, one
slot for their state. A sequence may get it with a known beginning (memory.py): then its first chunk
begins behind that.

Who is first:
  1. a class that got nothing for longer than its patience (patience_ms): one of it, guarded against
     being displaced for an eighth of that time
  2. the more urgent class; in a class who was displaced, who is suspended, then the line (line.py:
     the tenant that had least, of its sequences the one that is due first)
While the first one waits for memory nobody behind it gets any: a big one is never passed by small
ones. Displaced ones, which have theirs, go on meanwhile.

Who gives way: when the batch is full, a running one of a less urgent class is displaced at once.
When memory is short, to_suspend() names sequences of less urgent classes; whoever drives the
scheduler puts what they have computed into files and back (suspend, to_resume, resume). One that
cannot just leaves to_suspend alone: then the urgent one waits for memory.

Invariants, checked by check() after every step in the tests:
  1. a sequence is in exactly one of line, displaced, running, suspended; all are in order
  2. running and displaced ones hold all their memory, so that nothing running can fail for it; the
     others hold none
  3. tokens of one step <= max_step_tokens, running sequences <= max_batch <= max_step_tokens
check_order(), right after a step was scheduled: no less urgent one runs while a more urgent one
waits that could run, but for guarded ones.
"""

from bisect import insort
from collections.abc import Sequence as Items
from typing import Final

from workers.engine.chunks import FIRST_CHUNK, UNLIMITED_MS, Scheduled, prefill_of
from workers.engine.cost import StepCost
from workers.engine.line import Line, rank_of
from workers.engine.memory import Memory
from workers.engine.pace import decodes_of, prefill_room_ms
from workers.engine.sequence import Sequence
from workers.sla import SlaTable

GUARD_SHARE: Final = 8  # a class that was starved is guarded for this part of its patience
PATIENCE_LEAST_MS: Final = 8_000
PATIENCE_MOST_MS: Final = 120_000
DEADLINE_SHARE: Final = 30  # of a class that promises an end, not a first token


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
        """chunk: prefill tokens of a step; None: as many as fit the step by `cost`."""
        assert 1 <= max_batch <= max_step_tokens, (max_batch, max_step_tokens)
        self.memory = memory
        self.cost = cost
        self.max_batch = max_batch
        self.max_step_tokens = max_step_tokens
        self.budget_ms = budget_ms
        self.chunk = chunk
        self.running: list[Sequence] = []
        self.displaced: list[Sequence] = []  # wait for a place, and hold their memory
        self.suspended: list[Sequence] = []
        self.short: Sequence | None = None  # is first, and waits for memory
        self._lines: dict[int, Line] = {}  # by level
        self._num_added = 0

    # --- who is here ---

    @property
    def waiting(self) -> list[Sequence]:
        """All that do not run, about in the order in which they will."""
        waiting: list[Sequence] = []
        for level in sorted(self._lines):
            waiting += [s for s in self.displaced if s.level == level]
            waiting += [s for s in self.suspended if s.level == level]
            waiting += self._lines[level]
        return waiting

    @property
    def num_waiting(self) -> int:
        in_line = sum([len(line) for line in self._lines.values()])
        return in_line + len(self.displaced) + len(self.suspended)

    def add(self, sequence: Sequence) -> None:
        """It waits; among equals of rank the one added first goes first."""
        self._num_added += 1
        self._rank(sequence, self._num_added)
        self._join(sequence)
        self._lines[sequence.level].add(sequence)

    def remove(self, sequence: Sequence) -> None:
        """It has ended, or is somebody else's now: its memory is free."""
        self._take_out(sequence)
        self.memory.free(sequence)

    def reclass(self, sequence: Sequence, name: str, table: SlaTable) -> None:
        """It belongs to another class from now on, wherever it is."""
        place = self._take_out(sequence)
        sequence.reclass(name, table)
        self._rank(sequence, sequence.rank[2])
        self._join(sequence)
        if place is None:
            self._lines[sequence.level].add(sequence)
        else:
            insort(place, sequence, key=rank_of)

    def preempt(self, sequence: Sequence) -> None:
        """It is displaced: others have its place in the batch; it goes on where it was."""
        self.running.remove(sequence)
        insort(self.displaced, sequence, key=rank_of)

    def start_over(self, sequence: Sequence) -> None:
        """One that holds memory gives all of it back and waits for it again, in its rank."""
        (self.running if sequence in self.running else self.displaced).remove(sequence)
        sequence.num_cached = 0
        self.memory.free(sequence)
        self._lines[sequence.level].add(sequence)

    def can_ever_run(self, sequence: Sequence) -> bool:
        """False: its longest end does not fit even into an empty engine."""
        has_room = sequence.max_length > sequence.num_prompt
        return has_room and sequence.num_blocks_wanted <= self.memory.pool.num_blocks

    def can_take(self, sequences: Items[Sequence], num_tokens: int) -> bool:
        """Whether one step may be so large."""
        return len(sequences) <= self.max_batch and num_tokens <= self.max_step_tokens

    # --- memory that is short ---

    def to_suspend(self, num_promised: int = 0) -> list[Sequence]:
        """Whose memory the first one needs, the least urgent first; all that is needed, or none.

        Of a class those first that do not run, then those that are due last. Good after admit.
        num_promised: blocks that will be free soon, without anybody's help.
        """
        head = self.short
        if head is None:
            return []
        pool, states = self.memory.pool, self.memory.states
        need = head.num_blocks_wanted - pool.num_free - num_promised
        is_short_of_slots = states is not None and not states.can_allocate
        if need <= 0 and (not is_short_of_slots or num_promised > 0):
            return []
        victims: list[Sequence] = []
        holders = self.displaced[::-1] + self.running[::-1]
        for victim in sorted(holders, key=lambda s: -s.level):
            if victim.level <= head.level or victim.guarded_until > 0:
                continue
            victims.append(victim)
            need -= sum([pool.holders(block_id) == 1 for block_id in victim.blocks])
            if need <= 0:
                return victims
        return []

    def suspend(self, sequence: Sequence) -> None:
        """What it has computed is somebody's to write; it is away until that is done."""
        assert not sequence.blocks, f"{sequence.id} still holds its memory"
        (self.running if sequence in self.running else self.displaced).remove(sequence)
        sequence.num_cached = 0
        sequence.is_away = True
        insort(self.suspended, sequence, key=rank_of)

    def written(self, sequence: Sequence) -> None:
        """What a suspended one has computed is in files: it may be brought back."""
        sequence.is_away = False

    def to_resume(self) -> Sequence | None:
        """A suspended one that is first and has room again: it is away until resume."""
        head = self.short
        if head is None or head not in self.suspended or head.is_away:
            return None
        states = self.memory.states
        if head.num_blocks_wanted > self.memory.pool.num_free:
            return None
        if states is not None and not states.can_allocate:
            return None
        head.is_away = True
        return head

    def resume(self, sequence: Sequence) -> None:
        """A suspended one is back: it waits for its memory, and then for nothing else."""
        self.suspended.remove(sequence)
        sequence.is_away = False
        self._lines[sequence.level].add(sequence)

    # --- one step ---

    def schedule(self, now_ms: int) -> list[Scheduled]:
        """The next step: decodes first, then prefill. Empty only when nothing can run."""
        self.admit(now_ms)
        self._catch_up()
        model = self.cost.model()
        ready = [s for s in self.running if s.num_uncached == 1]
        decodes, base_ms = decodes_of(ready, model, now_ms)
        parts = [Scheduled(s, len(s.token_ids)) for s in decodes]
        if len(ready) < len(self.running):
            room = self.max_step_tokens - len(decodes)
            room_ms = prefill_room_ms(decodes, model, base_ms, self.budget_ms)
            if self.chunk is not None:
                room, room_ms = min(room, self.chunk), UNLIMITED_MS
            elif not self.cost.is_known:
                room, room_ms = min(room, FIRST_CHUNK), UNLIMITED_MS
            prompts = [s for s in self.running if s.num_uncached > 1]
            parts += prefill_of(prompts, model, room, room_ms)
        for part in parts:
            sequence = part.sequence
            sequence.served_ms = now_ms
            tenant = sequence.request.tenant
            self._lines[sequence.level].serve(tenant, part.num_tokens, now_ms)
        return parts

    def admit(self, now_ms: int) -> None:
        """Who is first gets memory and a place; whoever is less urgent gives way at once."""
        self.short = None
        self._end_guards(now_ms)
        starved = self._starved(now_ms)
        if starved is not None:
            self._let_in(starved)
            if starved in self.running:
                starved.guarded_until = now_ms + patience_ms(starved) // GUARD_SHARE
        while True:
            sequence = self._first()
            if sequence is None or not self._let_in(sequence):
                return

    def check(self) -> None:
        """Assert the invariants but those of memory, which Memory.check holds."""
        places = (self.running, self.displaced, self.suspended)
        ids = [sequence.id for sequence in self.running + self.waiting]
        assert len(set(ids)) == len(ids), ids
        for place in places:
            assert place == sorted(place, key=rank_of), [sequence.id for sequence in place]
        assert len(self.running) <= self.max_batch, len(self.running)
        for sequence in self.running + self.displaced:
            assert sequence.blocks, sequence.id
            assert sequence.num_cached < len(sequence.token_ids) <= sequence.max_length, sequence.id
        for sequence in self.suspended:
            assert not sequence.blocks and sequence.num_cached == 0, sequence.id
        for line in self._lines.values():
            line.check()
            assert not any(sequence.blocks for sequence in line)
        assert len(ids) == sum(line.num_members for line in self._lines.values())

    def check_order(self) -> None:
        """Assert that nobody runs for whom a more urgent one that could run waits.

        Right after admit or schedule. Who waits for memory cannot run, nor can anybody behind it.
        """
        lowest = max((s.level for s in self.running if s.guarded_until == 0), default=-1)
        is_full = len(self.running) == self.max_batch
        waiting = self.displaced + ([] if self.short else self.waiting)
        for sequence in waiting:
            assert is_full and sequence.level >= lowest, f"{sequence.id} waits and could run"

    # --- who is first ---

    def _first(self) -> Sequence | None:
        """While somebody waits for memory, only those who have theirs are asked."""
        if self.short is not None:
            return self.displaced[0] if self.displaced else None
        for level in sorted(self._lines):
            for place in (self.displaced, self.suspended):
                for sequence in place:
                    if sequence.level == level:
                        return sequence
            head = self._lines[level].head()
            if head is not None:
                return head
        return None

    def _let_in(self, sequence: Sequence) -> bool:
        """Run it, or note that it waits for memory. False: there is no place for it, nor for
        anybody behind it."""
        if sequence in self.running:
            return True
        victim = None
        if len(self.running) >= self.max_batch:
            victim = self._least_urgent()
            if victim is None or victim.level <= sequence.level:
                return False
        if sequence in self.suspended or not (sequence.blocks or self.memory.reserve(sequence)):
            self.short = sequence
            return True
        if victim is not None:
            self.preempt(victim)
        if sequence in self.displaced:
            self.displaced.remove(sequence)
        else:
            self._lines[sequence.level].remove(sequence)
        insort(self.running, sequence, key=rank_of)
        return True

    def _least_urgent(self) -> Sequence | None:
        """Of the running ones that are not guarded."""
        for sequence in reversed(self.running):
            if sequence.guarded_until == 0:
                return sequence
        return None

    def _starved(self, now_ms: int) -> Sequence | None:
        """The first of a class that got nothing for longer than it is to wait; the most urgent of
        such classes. The most urgent of all waits for nobody but those who are guarded."""
        levels = [level for level, line in self._lines.items() if line.num_members > 0]
        for level in sorted(levels)[1:]:
            line = self._lines[level]
            everybody = self.running + self.displaced + self.suspended
            mine = [s for s in everybody if s.level == level]
            head = mine[0] if mine else line.head()
            assert head is not None, level
            if now_ms - line.served_ms >= patience_ms(head) and head.guarded_until == 0:
                return head
        return None

    def _end_guards(self, now_ms: int) -> None:
        for sequence in self.running:
            if 0 < sequence.guarded_until <= now_ms:
                sequence.guarded_until = 0

    # --- the step's tokens ---

    def _catch_up(self) -> None:
        """Prompts that began alike at once: what one has computed by now, the others need not."""
        for sequence in [s for s in self.running if s.num_uncached > 1]:
            if not self.memory.catch_up(sequence):
                self.start_over(sequence)

    def _rank(self, sequence: Sequence, number: int) -> None:
        """It is due when its class promises something, or when it can just keep its deadline."""
        deadline_ms = sequence.request.deadline_ms
        if deadline_ms is not None:  # the latest start
            sequence.due_ms = min(sequence.due_ms, deadline_ms - self._work_ms(sequence))
        sequence.rank = (sequence.level, sequence.due_ms, number)

    def _work_ms(self, sequence: Sequence) -> int:
        """What is left of it takes so long, if it has the engine for itself."""
        model, num_output = self.cost.model(), sequence.max_length - len(sequence.token_ids)
        prompt_ms = model.prefill_ms_of(sequence.num_uncached, 0, self.max_step_tokens)
        return int(prompt_ms + num_output * model.step_ms(1, sequence.max_length))

    # --- lines ---

    def _join(self, sequence: Sequence) -> None:
        line = self._lines.get(sequence.level)
        if line is None:
            line = self._lines[sequence.level] = Line()
        line.join(sequence.request.tenant, sequence.request.arrival_ms)

    def _take_out(self, sequence: Sequence) -> list[Sequence] | None:
        """It is nowhere now. Where it was; None: in its line."""
        line = self._lines[sequence.level]
        found = None
        for place in (self.running, self.displaced, self.suspended):
            if sequence in place:
                place.remove(sequence)
                found = place
        if found is None:
            line.remove(sequence)
        line.leave(sequence.request.tenant)
        if self.short is sequence:
            self.short = None
        return found


def patience_ms(sequence: Sequence) -> int:
    """How long its class waits without any service before one of it goes first: as long as the
    first token is promised in, or a part of the deadline."""
    sla = sequence.sla
    promised = sla.ttft_ms or (sla.deadline_ms or 0) // DEADLINE_SHARE or PATIENCE_MOST_MS
    return min(max(promised, PATIENCE_LEAST_MS), PATIENCE_MOST_MS)
