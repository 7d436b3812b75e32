"""Whose memory goes to whoever is first and lacks it, and when there is room to bring one back."""

from workers.engine.memory import Memory
from workers.engine.places import Places
from workers.engine.sequence import Sequence


def victims_of(head: Sequence, places: Places, memory: Memory, num_promised: int) -> list[Sequence]:
    """Whose memory the first one needs, the least urgent first; all that is needed, or none.

    Of a class those first that do not run, then those that are due last.
    num_promised: blocks that will be free soon, without anybody's help.
    """
    pool, states = memory.pool, memory.states
    need = head.num_blocks_wanted - pool.num_free - num_promised
    is_short_of_slots = states is not None and not states.can_allocate
    if need <= 0 and (not is_short_of_slots or num_promised > 0):
        return []
    victims: list[Sequence] = []
    holders = places.displaced[::-1] + places.running[::-1]
    for victim in sorted(holders, key=lambda s: -s.level):
        if victim.level <= head.level or victim.guarded_until > 0:
            continue
        victims.append(victim)
        need -= sum([pool.holders(block_id) == 1 for block_id in victim.blocks])
        if need <= 0:
            return victims
    return []


def has_room(sequence: Sequence, memory: Memory) -> bool:
    """Whether its memory, to its longest end, is free."""
    if sequence.num_blocks_wanted > memory.pool.num_free:
        return False
    return memory.states is None or memory.states.can_allocate
