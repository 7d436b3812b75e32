"""How long a class waits without any service before one of it goes first, and is guarded then.

Guarded: not displaced, for an eighth of that patience. It is the one reason for which a less urgent
sequence runs while a more urgent one that could run waits.
"""

from typing import Final

from workers.engine.places import Places
from workers.engine.sequence import Sequence

GUARD_SHARE: Final = 8  # a class that was starved is guarded for this part of its patience
PATIENCE_LEAST_MS: Final = 8_000
PATIENCE_MOST_MS: Final = 120_000
DEADLINE_SHARE: Final = 30  # of a class that promises an end, not a first token


def patience_ms(sequence: Sequence) -> int:
    """Its class's: as long as the first token is promised in, or a part of the deadline."""
    sla = sequence.sla
    promised = sla.ttft_ms or (sla.deadline_ms or 0) // DEADLINE_SHARE or PATIENCE_MOST_MS
    return min(max(promised, PATIENCE_LEAST_MS), PATIENCE_MOST_MS)


def starved_of(places: Places, now_ms: int) -> Sequence | None:
    """The first of a class that got nothing for longer than it is to wait; the most urgent of such
    classes. The most urgent of all waits for nobody but those who are guarded."""
    levels = [level for level, line in places.lines.items() if line.num_members > 0]
    for level in sorted(levels)[1:]:
        line = places.lines[level]
        everybody = places.running + places.displaced + places.suspended
        mine = [s for s in everybody if s.level == level]
        head = mine[0] if mine else line.head()
        assert head is not None, level
        if now_ms - line.served_ms >= patience_ms(head) and head.guarded_until == 0:
            return head
    return None


def guard(sequence: Sequence, now_ms: int) -> None:
    """It runs, and is not displaced for a while."""
    sequence.guarded_until = now_ms + patience_ms(sequence) // GUARD_SHARE


def end_guards(running: list[Sequence], now_ms: int) -> None:
    for sequence in running:
        if 0 < sequence.guarded_until <= now_ms:
            sequence.guarded_until = 0
