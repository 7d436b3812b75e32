"""Files that go wrong on purpose: the n-th operation fails, is cut in half, or is the last one."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kv_tier.files import OsFiles


class FaultyFiles(OsFiles):
    """OsFiles whose operation number `at` (from 1) meets `fault`; the others work.

    count  operations so far, by name in `done`
    """

    def __init__(self, at: int = 0, fault: Callable[..., Any] | None = None) -> None:
        self.at = at
        self.fault = fault
        self.done: list[str] = []

    @property
    def count(self) -> int:
        return len(self.done)

    def perform(self, path: Path, operation: Callable[..., Any], *args: Any, **named: Any) -> Any:
        self.done.append(operation.__name__)
        if self.count == self.at and self.fault is not None:
            return super().perform(path, self.fault, operation, args)
        return super().perform(path, operation, *args, **named)


def fails(number: int) -> Callable[..., Any]:
    """The system refuses with this errno, and does nothing."""

    def fault(operation: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        raise OSError(number, os.strerror(number))

    return fault


def dies_before(operation: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """kill -9, and the operation never happens."""
    os.kill(os.getpid(), signal.SIGKILL)


def dies_after(operation: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """The operation happens, then kill -9 before anybody hears of it."""
    if operation.__name__ == "write":  # of a write, half
        fd, piece, offset = args
        args = (fd, memoryview(piece)[: len(piece) // 2], offset)
    operation(*args)
    os.kill(os.getpid(), signal.SIGKILL)


class ShortFiles(OsFiles):
    """Every write takes at most `most` bytes, as a system may."""

    def __init__(self, most: int) -> None:
        self.most = most

    def perform(self, path: Path, operation: Callable[..., Any], *args: Any, **named: Any) -> Any:
        if operation.__name__ == "write":
            fd, piece, offset = args
            args = (fd, memoryview(piece)[: self.most], offset)
        return super().perform(path, operation, *args, **named)
