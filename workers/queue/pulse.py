"""The words between a worker's threads and its engine: it moves, it shall stop, it hangs."""


class Pulse:
    """Each field but beside has one writer.

    progress  counts what was computed, layers for instance
    beside    counts what moved beside the engine: an item read from a disk, or written to it
    stopping  set once and for all
    hanging   the work has not moved for a beat: nothing more is claimed
    """

    def __init__(self) -> None:
        self.progress = 0
        self.beside = 0
        self.stopping = False
        self.hanging = False

    @property
    def moves(self) -> int:
        """Changes whenever anything moves. A count lost between two threads does no harm."""
        return self.progress + self.beside
