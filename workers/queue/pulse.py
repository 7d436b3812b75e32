"""The two words between a worker's threads and its engine: it moves, and it shall stop."""


class Pulse:
    """progress counts what was computed, layers for instance; stopping is set once and for all."""

    def __init__(self) -> None:
        self.progress = 0
        self.stopping = False
