"""Recurrent state: a slot for each running sequence, and checkpoints in the slots that are spare.

    free ──allocate──► held ──free──► free
      │                  │ save(name, position): a copy, in a slot that nobody holds
      │                  │ settle(name, position): the slot itself, for who has no more use for it
      └──────────────────▼
                    checkpoint ──forget, or taken back by allocate or save──► free
                         ├─ restore(name, slot): copied into a held slot
                         ├─ take(name): a held slot with the same state, copied if there is room
                         └─ pin(name), unpin(name): meanwhile nobody takes its slot

State cannot be cut back as KV can: to go back in a sequence is to start from a checkpoint, or from
position 0, where no state is needed. So a checkpoint is only ever a saving of time, and whoever
runs comes first. Lasting checkpoints, where conversations go on, outlive the passing ones, to which
a running sequence goes back; of either kind the one used longest ago goes first.

Invariants, checked by check():
  1. a slot is free, held by one, or one checkpoint
  2. free slots + held slots + checkpoints = num_slots
  3. what is pinned is a checkpoint

Names are the owner's business: the engine's passing ones are request ids, its lasting ones the hash
of the tokens before.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace

CopyBytes = Callable[[int, int], object]


class OutOfSlots(Exception):
    """All slots are held. Nothing was allocated."""

    def __init__(self, num_slots: int) -> None:
        super().__init__(f"all {num_slots} state slots are held")
        self.num_slots = num_slots


def no_bytes(source: int, target: int) -> None:
    """Of a pool whose slots are numbers alone."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The state after the first `position` tokens of what `name` names; it lies in `slot`."""

    name: str
    position: int
    slot: int
    is_lasting: bool = False


class StatePool:
    """The slots [0, num_slots), by number.

    find may be called from any thread, as a hint.
    """

    def __init__(self, num_slots: int, copy_bytes: CopyBytes = no_bytes) -> None:
        """copy_bytes(source, target): what lies in slot `target` becomes what lies in `source`."""
        assert num_slots >= 1, num_slots
        self.num_slots = num_slots
        self._copy = copy_bytes
        self._free: list[int] = list(range(num_slots - 1, -1, -1))
        self._held: set[int] = set()
        self._pins: dict[str, int] = {}
        self._checkpoints: OrderedDict[str, Checkpoint] = OrderedDict()  # used longest ago first

    @property
    def num_free(self) -> int:
        """Slots that are neither held nor a checkpoint."""
        return len(self._free)

    @property
    def num_held(self) -> int:
        return len(self._held)

    @property
    def num_checkpoints(self) -> int:
        return len(self._checkpoints)

    @property
    def num_pins(self) -> int:
        """How often pin was called without an unpin."""
        return sum(self._pins.values())

    @property
    def can_allocate(self) -> bool:
        return len(self._held) + len(self._pins) < self.num_slots

    def allocate(self) -> int:
        """A slot, if need be that of a checkpoint. Its bytes are whatever they were.

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

    def save(self, name: str, slot: int, position: int, *, is_lasting: bool = False) -> bool:
        """Keep a copy of a held slot under this name, in place of an older one of that name.

        False: there is no room, for every other slot is held, or has a lasting checkpoint where a
        passing one is wanted; then nothing is kept.
        """
        assert slot in self._held and position > 0, (slot, position)
        if name in self._pins:
            return True  # names are those of states: it is the same
        self.forget(name)
        spare = self._spare(also_lasting=is_lasting)
        if spare is None:
            return False
        self._copy(slot, spare)
        self._checkpoints[name] = Checkpoint(name, position, spare, is_lasting)
        return True

    def settle(self, name: str, slot: int, position: int) -> None:
        """A held slot becomes the lasting checkpoint of this name, without a copy."""
        assert slot in self._held and position > 0, (slot, position)
        if name in self._pins:
            return self.free(slot)
        self.forget(name)
        self._held.remove(slot)
        self._checkpoints[name] = Checkpoint(name, position, slot, is_lasting=True)

    def rename(self, name: str, lasting_name: str) -> None:
        """A checkpoint that is there is a lasting one from now on, under a name that was free."""
        assert name not in self._pins and lasting_name not in self._checkpoints, lasting_name
        old = self._checkpoints.pop(name)
        self._checkpoints[lasting_name] = replace(old, name=lasting_name, is_lasting=True)

    def find(self, name: str) -> Checkpoint | None:
        """The checkpoint of this name, if it is still kept."""
        return self._checkpoints.get(name)

    def restore(self, name: str, slot: int) -> int:
        """Copy a checkpoint into a held slot; its position. 0 when it is gone: the start."""
        assert slot in self._held, slot
        checkpoint = self._checkpoints.get(name)
        if checkpoint is None:
            return 0
        self._checkpoints.move_to_end(name)
        self._copy(checkpoint.slot, slot)
        return checkpoint.position

    def take(self, name: str) -> int:
        """A held slot with the state of a checkpoint that is there.

        The checkpoint stays, unless that would cost another lasting one: then its slot is given.

        Raises OutOfSlots.
        """
        checkpoint = self._checkpoints[name]
        self._checkpoints.move_to_end(name)
        slot = self._spare(also_lasting=False, but=name)
        if slot is None and name not in self._pins:
            slot = self._checkpoints.pop(name).slot
            self._held.add(slot)
            return slot
        if slot is None:
            slot = self._spare(but=name)
        if slot is None:
            raise OutOfSlots(self.num_slots)
        self._held.add(slot)
        self._copy(checkpoint.slot, slot)
        return slot

    def pin(self, name: str) -> int:
        """Nobody takes the slot of this checkpoint, which is there, until it is unpinned; its slot.

        As often as it is pinned it has to be unpinned.
        """
        self._pins[name] = self._pins.get(name, 0) + 1
        return self._checkpoints[name].slot

    def unpin(self, name: str) -> None:
        """One pin less."""
        assert name in self._pins, f"{name} is not pinned"
        self._pins[name] -= 1
        if self._pins[name] == 0:
            del self._pins[name]

    def forget(self, name: str) -> None:
        """Drop the checkpoint of this name, if there is one and it is not pinned."""
        if name in self._pins:
            return
        checkpoint = self._checkpoints.pop(name, None)
        if checkpoint is not None:
            self._free.append(checkpoint.slot)

    def forget_all(self) -> None:
        """Drop all checkpoints that are not pinned."""
        for name in list(self._checkpoints):
            self.forget(name)

    def free_slots(self) -> list[int]:
        """Those that are neither held nor a checkpoint."""
        return list(self._free)

    def check(self) -> None:
        """Assert the invariants."""
        kept = [checkpoint.slot for checkpoint in self._checkpoints.values()]
        slots = sorted([*self._free, *self._held, *kept])
        assert slots == list(range(self.num_slots)), (self._free, self._held, kept)
        assert all(name == c.name for name, c in self._checkpoints.items()), self._checkpoints
        assert self._pins.keys() <= self._checkpoints.keys(), self._pins
        assert all(count > 0 for count in self._pins.values()), self._pins

    def _spare(self, *, also_lasting: bool = True, but: str = "") -> int | None:
        """A slot that nobody holds, off the free list or from a checkpoint that may go."""
        if not self._free:
            self._drop_one(also_lasting, but)
        return self._free.pop() if self._free else None

    def _drop_one(self, also_lasting: bool, but: str) -> None:
        pinned = self._pins
        kept = [c for c in self._checkpoints.values() if c.name != but and c.name not in pinned]
        passing = [c for c in kept if not c.is_lasting]
        for checkpoint in [*passing, *(kept if also_lasting else [])][:1]:
            self.forget(checkpoint.name)
