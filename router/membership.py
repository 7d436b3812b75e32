"""Each second a router says to its fleet what its node can do, and hears who is gone.

A node that is alone on its Redis has a Membership that does nothing.
"""

import os
import time
from collections.abc import Callable, Sequence
from typing import Final

from router.burden import burden_ms
from router.pools import PoolView, Wanted
from workers.clock import now_ms
from workers.fleet.instance import identity, node_id, own_version
from workers.fleet.presence import NodeReport, Presence
from workers.log import logger
from workers.settings import Settings
from workers.store import Store
from workers.text.text_model import TextModel

SAY_EVERY_S: Final = 1.0
UNKNOWN: Final = 1e-3  # requests a second of a pool that has not said what its steps cost
TYPICAL: Final = Wanted("", "standard", 0, 256, 256)  # by which nodes are compared

log = logger("router")


class Membership:
    """One router's.   presence: None: the node is alone

    share    the part of what waits in the streams that is this node's to do, 0 to 1
    refused  why it reads no requests, in words; "": it does
    gone     nodes that others have to look after
    """

    def __init__(self, presence: Presence | None) -> None:
        self.presence = presence
        self.share, self.refused = 1.0, ""
        self.gone: tuple[str, ...] = ()
        self._said_at = float("-inf")

    def say(
        self, views: Callable[[], Sequence[PoolView]], longest: Callable[[], int | None]
    ) -> None:
        """Once a second; of a change there is a line in the log.   longest: sequence held here"""
        now = time.monotonic()
        if self.presence is None or now - self._said_at < SAY_EVERY_S:
            return
        self._said_at = now
        self.presence.say(speed_of(views()), longest() or 0)
        self.share, self.gone = self.presence.share, self.presence.gone
        if self.presence.refused != self.refused:
            self.refused = self.presence.refused
            if self.refused:
                log.warning("takes no requests", reason=self.refused)
            else:
                log.info("takes part")

    def leave(self) -> None:
        """The node stops on purpose."""
        if self.presence is not None:
            self.presence.leave()


def speed_of(views: Sequence[PoolView]) -> float:
    """Typical requests that the ready pools end in a second; of those that say what steps cost."""
    ready = [view for view in views if view.is_ready]
    known = [1000 / max(burden_ms(TYPICAL, view), 1e-3) for view in ready if view.cost is not None]
    return sum(known) or UNKNOWN * len(ready)


def membership(config: Settings, store: Store, text: TextModel) -> Membership:
    """Of the node that the settings name."""
    if not config.node:
        return Membership(None)
    same = identity(config.home / "models" / config.model, text.name, text.weights_digest)
    told = NodeReport(
        node=config.node,
        instance=node_id(config.home),
        host=os.uname().nodename,
        since_ms=now_ms(),
        version=own_version(),
        model=text.name,
        weights=text.weights_digest,
        arithmetic=same.rpartition(":")[2],
    )
    return Membership(Presence(store, same, told))
