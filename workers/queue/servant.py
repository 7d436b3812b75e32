"""A thread of a worker. What it did not foresee ends the process: the successor takes over."""

import os
import threading
from typing import Final

from workers.log import logger

log = logger("queue")
CRASH_EXIT: Final = 70  # EX_SOFTWARE: its keeper starts it again


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
