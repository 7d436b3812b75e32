"""Recurrent state: a slot for each running sequence, and checkpoints in the slots that are spare.

    free ──allocate──► held ──free──► free
      │                  │ save(name, position): a copy, in a slot that nobody holds
      └──────────────────▼
                    checkpoint ──forget, or taken back by allocate or save, oldest first──► free
                         └─ restore(name, slot): copied into a held slot

State cannot be cut back as KV can: to go back in a sequence is to start from a checkpoint, or from
position 0, where no state is needed. So a checkpoint is only ever a saving of time, and whoever
runs comes first.

Invariants, checked by check():
  1. a slot is free, held by one sequence, or one checkpoint
  2. free slots + held slots + checkpoints = num_slots

Names are the owner's business: the engine's are request ids; what a session keeps may be named by
the hash of its tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]


class OutOfSlots(Exception):
    """All slots are held. Nothing was allocated."""

    def __init__(self, num_slots: int) -> None:
        super().__init__(f"all {num_slots} state slots are held")
        self.num_slots = num_slots


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The state after the first `position` tokens of what `name` names; it lies in `slot`."""

    name: str
    position: int
    slot: int


class StatePool:
    """The slots [0, num_slots) of the state's arrays; index 0 of each array is the slot."""

    def __init__(self, num_slots: int, arrays: Sequence[F32] = ()) -> None:
        assert num_slots >= 1, num_slots
        assert all(len(array) == num_slots for array in arrays), num_slots
        self.num_slots = num_slots
        self._arrays = tuple(arrays)
        self._free: list[int] = list(range(num_slots - 1, -1, -1))
        self._held: set[int] = set()
        self._checkpoints: dict[str, Checkpoint] = {}  # oldest first

    @property
    def num_held(self) -> int:
        return len(self._held)

    @property
    def num_checkpoints(self) -> int:
        return len(self._checkpoints)

    @property
    def can_allocate(self) -> bool:
        return len(self._held) < self.num_slots

    def allocate(self) -> int:
        """A slot, if need be the oldest checkpoint's. Its bytes are whatever they were.

        Raises OutOfSlots.
        """
        slot = self._spare()
        if slot is None:
            raise OutOfSlots(self.num_slots)
        self._held.add(slot)
        return slot

    def free(self, slot: int) -> None:
        """Its sequence has no more use for it."""
        assert slot in self._held, f"state slot {slot} is freed, but nobody holds it"
        self._held.remove(slot)
        self._free.append(slot)

    def copy(self, source: int, target: int) -> None:
        """The state of slot `target` becomes that of `source`: for a fork of a sequence."""
        assert source != target and target in self._held, (source, target)
        self._copy(source, target)

    def save(self, name: str, slot: int, position: int) -> bool:
        """Keep a copy of a held slot under this name, in place of an older one of that name.

        False: there is no room, for every other slot is held; then nothing is kept.
        """
        assert slot in self._held and position > 0, (slot, position)
        self.forget(name)
        spare = self._spare()
        if spare is None:
            return False
        self._copy(slot, spare)
        self._checkpoints[name] = Checkpoint(name, position, spare)
        return True

    def find(self, name: str) -> Checkpoint | None:
        """The checkpoint of this name, if it is still kept."""
        return self._checkpoints.get(name)

    def restore(self, name: str, slot: int) -> int:
        """Copy a checkpoint into a held slot; its position. 0 when it is gone: the start."""
        assert slot in self._held, slot
        checkpoint = self._checkpoints.get(name)
        if checkpoint is None:
            return 0
        self._copy(checkpoint.slot, slot)
        return checkpoint.position

    def forget(self, name: str) -> None:
        """Drop the checkpoint of this name, if there is one."""
        checkpoint = self._checkpoints.pop(name, None)
        if checkpoint is not None:
            self._free.append(checkpoint.slot)

    def check(self) -> None:
        """Assert the invariants."""
        kept = [checkpoint.slot for checkpoint in self._checkpoints.values()]
        slots = sorted([*self._free, *self._held, *kept])
        assert slots == list(range(self.num_slots)), (self._free, self._held, kept)
        assert all(name == c.name for name, c in self._checkpoints.items()), self._checkpoints

    def _spare(self) -> int | None:
        """A slot that nobody holds, taken off the free list or from the oldest checkpoint."""
        if not self._free and self._checkpoints:
            self.forget(next(iter(self._checkpoints)))
        return self._free.pop() if self._free else None

    def _copy(self, source: int, target: int) -> None:
        for array in self._arrays:
            array[target] = array[source]
