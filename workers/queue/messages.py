"""What a worker's threads tell its main thread, by a SimpleQueue: a signal handler may put too."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from workers.worker_store import Claimed


@dataclass(frozen=True, slots=True)
class Work:
    """An item was claimed; prepared is what the worker's prepare() made of it."""

    item: Claimed
    prepared: Any


@dataclass(frozen=True, slots=True)
class Cancel:
    """Nobody wants this item any more."""

    job_id: str


@dataclass(frozen=True, slots=True)
class Lost:
    """The lease of this execution is gone."""

    item: Claimed


@dataclass(frozen=True, slots=True)
class Move:
    """Another pool shall go on with this item."""

    job_id: str
    pool: str


@dataclass(frozen=True, slots=True)
class Promote:
    """This item is of another class now."""

    job_id: str
    sla: str


@dataclass(frozen=True, slots=True)
class Do:
    """Something that only the main thread may do, for what is in its hands."""

    call: Callable[[], object]


@dataclass(frozen=True, slots=True)
class Stop:
    """The worker stops; it only wakes whoever waits."""


Message = Work | Cancel | Lost | Move | Promote | Do | Stop
