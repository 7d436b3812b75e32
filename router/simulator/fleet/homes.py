"""Where sessions are at home, as router/homing.py decides it, of nodes that are simulated."""

from collections.abc import Callable
from typing import Any

from router.homing import Homes
from router.pools import PoolView
from workers.sla import SlaTable


class Seen:
    """A node as another one's router sees it: router/sight.py without a store."""

    def __init__(self, views: Callable[[], tuple[PoolView, ...]]) -> None:
        self.views = views


class SimHomes(Homes):
    """The real rule; node_views gives the pools of the node that has a pool of this name."""

    def __init__(self, table: SlaTable, node_views: Callable[[str], tuple[PoolView, ...]]) -> None:
        self.table, self.node_views = table, node_views

    def sight(self, home: str) -> Any:
        return Seen(lambda: self.node_views(home))
