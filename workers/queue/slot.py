"""A worker's name: the same after a restart, and never held by two living processes.

The name is NODE-QUEUE-SLOT. A slot is a locked file under LOCKSTEP_HOME; the lock goes with its
process, however that ends, so whoever gets the slot knows that its former holder is dead.
"""

import fcntl
import os
from pathlib import Path
from typing import Final

from workers.fleet.instance import node_id

SLOTS_MAX: Final = 1000


class Slot:
    """A taken name. The lock is held until free() or the end of the process."""

    def __init__(self, name: str, lock: int) -> None:
        self.name, self._lock = name, lock

    def free(self) -> None:
        os.close(self._lock)


def take_slot(home: Path, queue: str) -> Slot:
    """The first free slot of this queue on this node."""
    folder = home / "slots"
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(SLOTS_MAX):
        lock = os.open(folder / f"{queue}-{number}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            continue
        return Slot(f"{node_id(home)}-{queue}-{number}", lock)
    raise AssertionError(f"{SLOTS_MAX} workers of {queue} in {home}")
