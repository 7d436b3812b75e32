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
  1. a class that got nothing for longer than its patience (patience.py): one of it, guarded against
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
  1. a sequence is in exactly one of line, displaced, running, suspended, in order (places.py)
  2. running and displaced ones hold all their memory, so that nothing running can fail for it; the
     others hold none
  3. tokens of one step <= max_step_tokens, running sequences <= max_batch <= max_step_tokens
check_order(), right after a step was scheduled: no less urgent one runs while a more urgent one
waits that could run, but for guarded ones.
"""

from bisect import insort
from collections.abc import Sequence as Items

from workers.engine.chunks import FIRST_CHUNK, UNLIMITED_MS, Scheduled, prefill_of
from workers.engine.cost import StepCost
from workers.engine.line import rank_of
from workers.engine.memory import Memory
from workers.engine.pace import decodes_of, prefill_room_ms
from workers.engine.patience import end_guards, guard, starved_of
from workers.engine.places import Places
from workers.engine.sequence import Sequence
from workers.engine.shortage import has_room, victims_of
from workers.sla import SlaTable


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
        self.places = Places()
        self.running = self.places.running
        self.displaced = self.places.displaced
        self.suspended = self.places.suspended
        self.short: Sequence | None = None  # is first, and waits for memory
        self.prefilled: dict[str, int] = {}  # prompt tokens that were scheduled, by class
        self._num_added = 0

    # --- who is here ---

    @property
    def waiting(self) -> list[Sequence]:
        """All that do not run, about in the order in which they will."""
        return self.places.waiting

    @property
    def num_waiting(self) -> int:
        return self.places.num_waiting

    def add(self, sequence: Sequence) -> None:
        """It waits; among equals of rank the one added first goes first."""
        self._num_added += 1
        self._rank(sequence, self._num_added)
        self.places.join(sequence)
        self.places.stand_in_line(sequence)

    def remove(self, sequence: Sequence) -> None:
        """It has ended, or is somebody else's now: its memory is free."""
        self._take_out(sequence)
        self.memory.free(sequence)

    def reclass(self, sequence: Sequence, name: str, table: SlaTable) -> None:
        """It belongs to another class from now on, wherever it is."""
        place = self._take_out(sequence)
        sequence.reclass(name, table)
        self._rank(sequence, sequence.rank[2])
        self.places.join(sequence)
        if place is None:
            self.places.stand_in_line(sequence)
        else:
            insort(place, sequence, key=rank_of)

    def preempt(self, sequence: Sequence) -> None:
        """It is displaced: others have its place in the batch; it goes on where it was."""
        self.places.displace(sequence)

    def start_over(self, sequence: Sequence) -> None:
        """One that holds memory gives all of it back and waits for it again, in its rank."""
        self.places.give_memory_up(sequence)
        sequence.num_cached = 0
        self.memory.free(sequence)
        self.places.stand_in_line(sequence)

    def can_ever_run(self, sequence: Sequence) -> bool:
        """False: its longest end does not fit even into an empty engine."""
        has_room = sequence.max_length > sequence.num_prompt
        return has_room and sequence.num_blocks_wanted <= self.memory.pool.num_blocks

    def can_take(self, sequences: Items[Sequence], num_tokens: int) -> bool:
        """Whether one step may be so large."""
        return len(sequences) <= self.max_batch and num_tokens <= self.max_step_tokens

    # --- memory that is short ---

    def to_suspend(self, num_promised: int = 0) -> list[Sequence]:
        """Whose memory the first one needs (shortage.py). Good after admit.

        num_promised: blocks that will be free soon, without anybody's help.
        """
        head = self.short
        return [] if head is None else victims_of(head, self.places, self.memory, num_promised)

    def suspend(self, sequence: Sequence) -> None:
        """What it has computed is somebody's to write; it is away until that is done."""
        assert not sequence.blocks, f"{sequence.id} still holds its memory"
        self.places.suspend(sequence)
        sequence.num_cached = 0
        sequence.is_away = True

    def written(self, sequence: Sequence) -> None:
        """What a suspended one has computed is in files: it may be brought back."""
        sequence.is_away = False

    def to_resume(self) -> Sequence | None:
        """A suspended one that is first and has room again: it is away until resume."""
        head = self.short
        if head is None or head not in self.suspended or head.is_away:
            return None
        if not has_room(head, self.memory):
            return None
        head.is_away = True
        return head

    def resume(self, sequence: Sequence) -> None:
        """A suspended one is back: it waits for its memory, and then for nothing else."""
        self.suspended.remove(sequence)
        sequence.is_away = False
        self.places.stand_in_line(sequence)

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
            chunks = prefill_of(prompts, model, room, room_ms)
            for part in chunks:
                name = part.sequence.sla.name
                self.prefilled[name] = self.prefilled.get(name, 0) + part.num_tokens
            parts += chunks
        for part in parts:
            sequence = part.sequence
            sequence.served_ms = now_ms
            tenant = sequence.request.tenant
            self.places.lines[sequence.level].serve(tenant, part.num_tokens, now_ms)
        return parts

    def admit(self, now_ms: int) -> None:
        """Who is first gets memory and a place; whoever is less urgent gives way at once."""
        self.short = None
        end_guards(self.running, now_ms)
        starved = starved_of(self.places, now_ms)
        if starved is not None:
            self._let_in(starved)
            if starved in self.running:
                guard(starved, now_ms)
        while True:
            sequence = self._first()
            if sequence is None or not self._let_in(sequence):
                return

    def check(self) -> None:
        """Assert the invariants but those of memory, which Memory.check holds."""
        self.places.check()
        assert len(self.running) <= self.max_batch, len(self.running)

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
        return self.places.first()

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
        self.places.run(sequence)
        return True

    def _least_urgent(self) -> Sequence | None:
        """Of the running ones that are not guarded."""
        for sequence in reversed(self.running):
            if sequence.guarded_until == 0:
                return sequence
        return None

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

    def _take_out(self, sequence: Sequence) -> list[Sequence] | None:
        """It is nowhere now. Where it was; None: in its line."""
        if self.short is sequence:
            self.short = None
        return self.places.take_out(sequence)
