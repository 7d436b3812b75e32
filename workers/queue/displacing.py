"""How many requests a full pool claims beyond its places: those that less urgent ones make way for.

Pure.
"""

from collections.abc import Sequence

from workers.sla import SlaTable


def room_beyond(classes: Sequence[str], capacity: int, table: SlaTable) -> dict[str, int]:
    """As many of a class as there are less urgent ones here that have their place still.

    classes   of all that the pool holds
    capacity  places; what is held beyond them has taken somebody's place already
    """
    levels = [table.urgency[table[name].name] for name in classes]
    displaced = max(0, len(levels) - capacity)
    lower = {n: sum(other > level for other in levels) for n, level in table.urgency.items()}
    return {name: count - displaced for name, count in lower.items() if count > displaced}
