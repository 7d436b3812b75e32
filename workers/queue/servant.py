"""A thread of a worker. What it did not foresee ends the process: the successor takes over."""

import os
import threading
from queue import SimpleQueue
from typing import Final, Generic, TypeVar

from workers.log import logger

log = logger("queue")
CRASH_EXIT: Final = 70  # EX_SOFTWARE: its keeper starts it again
Item = TypeVar("Item")


class Servant(threading.Thread):
    """Children say what they do in serve()."""

    def __init__(self, name: str) -> None:
        super().__init__(name=name, daemon=True)

    def serve(self) -> None:
        raise NotImplementedError

    def run(self) -> None:
        try:
            self.serve()
        except Exception:
            log.exception("a thread crashed, ending", thread=self.name)
            os._exit(CRASH_EXIT)


class Clerk(Servant, Generic[Item]):
    """Does what others put into its inbox, in order, up to the None that flush puts last."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.inbox: SimpleQueue[Item | None] = SimpleQueue()

    def put(self, item: Item) -> None:
        self.inbox.put(item)

    def flush(self, seconds: float) -> None:
        """Do what is here and end; at most this long."""
        self.inbox.put(None)
        if self.is_alive():
            self.join(seconds)
