"""Whose turn it is: requests are placed by weight, 8 : 3 : 1 of realtime, standard and batch.

Each class has a due time that moves by 1 / weight with every request placed; the earliest due class
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
        self._waiting: set[str] = set()

    def order(self, waiting: Mapping[str, int]) -> list[str]:
        """The class of each that waits, in the order in which they are to be tried."""
        left = {sla: waiting.get(sla, 0) for sla in self.weights}
        self._waiting = {sla for sla, count in left.items() if count}
        self._catch_up()
        due = dict(self.due)
        order = []
        for _ in range(sum(left.values())):
            sla = min((sla for sla in left if left[sla]), key=due.__getitem__)
            order.append(sla)
            left[sla] -= 1
            due[sla] += 1 / self.weights[sla]
        return order

    def served(self, sla: str) -> None:
        """One of this class has been placed."""
        self.due[sla] += 1 / self.weights[sla]
        self._catch_up()

    def _catch_up(self) -> None:
        """A class that had nothing waiting saves up no turns for later."""
        now = min((self.due[sla] for sla in self._waiting), default=0.0)
        for sla in self.due.keys() - self._waiting:
            self.due[sla] = max(self.due[sla], now)
