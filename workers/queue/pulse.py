"""The words between a worker's threads and its engine: it moves, it shall stop, it hangs."""

import time
from typing import Final

STEP_S: Final = 0.5  # what a step may still take when the worker shall stop


class Pulse:
    """Each field but beside has one writer.

    progress  counts what was computed, layers for instance
    beside    counts what moved beside the engine: an item read from a disk, or written to it
    stopping  set once and for all, by stop()
    hanging   the work has not moved for a beat: nothing more is claimed
    """

    def __init__(self) -> None:
        self.progress = 0
        self.beside = 0
        self.stopping = False
        self.stopped_at = 0.0
        self.hanging = False

    def stop(self) -> None:
        """Also from a signal's handler."""
        if not self.stopping:
            self.stopped_at = time.monotonic()
            self.stopping = True

    @property
    def is_patience_over(self) -> bool:
        """A stopping worker does not wait for its step any longer."""
        return self.stopping and time.monotonic() - self.stopped_at > STEP_S

    @property
    def moves(self) -> int:
        """Changes whenever anything moves. A count lost between two threads does no harm."""
        return self.progress + self.beside
