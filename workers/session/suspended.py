"""What the writer is given to write (writer.py): of one request, or of one that goes on."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from kv_tier.chain import BLOCK_TOKENS
from kv_tier.format import Kind
from kv_tier.manifest import Manifest
from workers.engine.kept import Kept


@dataclass(eq=False, slots=True)
class Suspended:
    """What is to be written.

    session   full id; "" of a request that is handed over or handed back in the middle of its turn
    manifest  the session's newest, to be followed by one that names what was written; None: none is
    then      called in the writer's thread when all is written, or could not be
    is_behind its sequence goes on: it holds the same memory, so nothing is gained by a hurry
    """

    kept: Kept
    session: str = ""
    manifest: Manifest | None = None
    then: Callable[[], object] | None = None
    is_behind: bool = False
    is_urgent: bool = False
    is_kv_written: bool = False
    is_busy: bool = False
    since: float = field(default_factory=time.monotonic)


def computed_of(kept: Kept) -> set[tuple[Kind, bytes]]:
    """The objects that hold what was computed for it: not those that it began with."""
    first = kept.num_reused // BLOCK_TOKENS
    computed: set[tuple[Kind, bytes]] = {("block", key) for key, _ in kept.blocks[first:]}
    return computed if kept.state is None else computed | {("state", kept.state[0])}


def urgency_of(entry: Suspended) -> tuple[bool, bool, float]:
    """Who is written first: who is waited for; what ended before what goes on, or rests."""
    is_awaited = entry.is_urgent or entry.then is not None
    return (not is_awaited, entry.is_kv_written or entry.is_behind, entry.since)
