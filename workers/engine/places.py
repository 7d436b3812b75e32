"""Where the sequences of an engine are: in line, running, displaced or suspended.

    join ──► lines ──────► running ──► take_out (gone)      lines, by level: wait without memory
               ▲            │   ▲
               │            ▼   │
               │          displaced                         wait for a place, and hold their memory
               └── suspended ◄──┘                           wait, their memory in files

Invariants, checked by check(): a sequence is in exactly one of them; all are in order of rank;
running and displaced ones hold all their memory, the others none.
"""

from bisect import insort

from workers.engine.line import Line, rank_of
from workers.engine.sequence import Sequence


class Places:
    """Of one scheduler. The lists are in order of rank, and always the same objects."""

    def __init__(self) -> None:
        self.running: list[Sequence] = []
        self.displaced: list[Sequence] = []
        self.suspended: list[Sequence] = []
        self.lines: dict[int, Line] = {}  # by level

    @property
    def waiting(self) -> list[Sequence]:
        """All that do not run, about in the order in which they will."""
        waiting: list[Sequence] = []
        for level in sorted(self.lines):
            waiting += [s for s in self.displaced if s.level == level]
            waiting += [s for s in self.suspended if s.level == level]
            waiting += self.lines[level]
        return waiting

    @property
    def num_waiting(self) -> int:
        in_line = sum([len(line) for line in self.lines.values()])
        return in_line + len(self.displaced) + len(self.suspended)

    def first(self) -> Sequence | None:
        """The first that waits, of the most urgent level that has any."""
        for level in sorted(self.lines):
            for place in (self.displaced, self.suspended):
                for sequence in place:
                    if sequence.level == level:
                        return sequence
            head = self.lines[level].head()
            if head is not None:
                return head
        return None

    def join(self, sequence: Sequence) -> None:
        """It belongs to its level from now on; where it is, is for the caller to say."""
        line = self.lines.get(sequence.level)
        if line is None:
            line = self.lines[sequence.level] = Line()
        line.join(sequence.request.tenant, sequence.request.arrival_ms)

    def stand_in_line(self, sequence: Sequence) -> None:
        self.lines[sequence.level].add(sequence)

    def run(self, sequence: Sequence) -> None:
        """One that was displaced, or in line, runs."""
        if sequence in self.displaced:
            self.displaced.remove(sequence)
        else:
            self.lines[sequence.level].remove(sequence)
        insort(self.running, sequence, key=rank_of)

    def displace(self, sequence: Sequence) -> None:
        """One that runs waits for a place."""
        self.running.remove(sequence)
        insort(self.displaced, sequence, key=rank_of)

    def give_memory_up(self, sequence: Sequence) -> None:
        """One that holds memory is nowhere now; it belongs to its level still."""
        (self.running if sequence in self.running else self.displaced).remove(sequence)

    def suspend(self, sequence: Sequence) -> None:
        self.give_memory_up(sequence)
        insort(self.suspended, sequence, key=rank_of)

    def take_out(self, sequence: Sequence) -> list[Sequence] | None:
        """It is nowhere now. Where it was; None: in its line."""
        line = self.lines[sequence.level]
        found = None
        for place in (self.running, self.displaced, self.suspended):
            if sequence in place:
                place.remove(sequence)
                found = place
        if found is None:
            line.remove(sequence)
        line.leave(sequence.request.tenant)
        return found

    def check(self) -> None:
        """Assert the invariants but those of memory, which Memory.check holds."""
        ids = [sequence.id for sequence in self.running + self.waiting]
        assert len(set(ids)) == len(ids), ids
        for place in (self.running, self.displaced, self.suspended):
            assert place == sorted(place, key=rank_of), [sequence.id for sequence in place]
        for sequence in self.running + self.displaced:
            assert sequence.blocks, sequence.id
            assert sequence.num_cached < len(sequence.token_ids) <= sequence.max_length, sequence.id
        for sequence in self.suspended:
            assert not sequence.blocks and sequence.num_cached == 0, sequence.id
        for line in self.lines.values():
            line.check()
            assert not any(sequence.blocks for sequence in line)
        assert len(ids) == sum(line.num_members for line in self.lines.values())
