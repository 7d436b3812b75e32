"""The words between a worker's threads and its engine: it moves, it shall stop, it hangs."""


class Pulse:
    """Each field has one writer.

    progress  counts what was computed, layers for instance
    stopping  set once and for all
    hanging   the work has not moved for a beat: nothing more is claimed
    """

    def __init__(self) -> None:
        self.progress = 0
        self.stopping = False
        self.hanging = False
