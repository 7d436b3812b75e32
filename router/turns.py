"""Whose turn it is: requests are read by weight, 8 : 3 : 1 from realtime, standard and batch.

Each class has a due time that moves by 1 / weight with every request read; the earliest due class
that has something waiting is next. So the shares hold over time even when there is room for only
one request, an empty class costs nobody anything, and batch is slow but never starved.
"""

from collections.abc import Mapping

from workers.sla import SlaTable


class Turns:
    """Remembers the due times from one round to the next."""

    def __init__(self, table: SlaTable) -> None:
        self.weights = {sla.name: sla.weight for sla in table}
        self.due = dict.fromkeys(table.names, 0.0)

    def share(self, room: int, waiting: Mapping[str, int]) -> dict[str, int]:
        """How many requests of each class to read: room of them in all, or all that wait."""
        counts = dict.fromkeys(self.weights, 0)
        for _ in range(room):
            left = [sla for sla in self.weights if waiting[sla] > counts[sla]]
            if not left:
                break
            sla = min(left, key=self.due.__getitem__)  # of equals the most urgent
            counts[sla] += 1
            self.due[sla] += 1 / self.weights[sla]
        self._catch_up(waiting)
        return counts

    def _catch_up(self, waiting: Mapping[str, int]) -> None:
        """A class that had nothing to read saves up no turns for later."""
        now = min((due for sla, due in self.due.items() if waiting[sla]), default=0.0)
        for sla in self.weights:
            if not waiting[sla]:
                self.due[sla] = max(self.due[sla], now)
