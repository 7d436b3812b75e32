"""Copies between RAM and VRAM through pinned memory, some pieces of it on their way at once.

    write   RAM ──memcpy──► | piece 0 | piece 1 | piece 2 | ──DMA──► VRAM
    read    RAM ◄──memcpy── | piece 0 | piece 1 | piece 2 | ◄──DMA── VRAM

Each piece has an event, recorded behind the DMA that uses it: a piece is touched again when its
event has happened, never earlier. What lies scattered in VRAM (the tail of a KV block) goes as
places: (address, bytes) one after the other, packed densely in RAM.
"""

import threading
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np

from kernels.arrays import Array
from kernels.cuda.driver import Driver, Stream
from kernels.ops import U8

PIECES: Final = 3
PIECE_BYTES: Final = 4 << 20

Place = tuple[int, int]  # address in VRAM, bytes


class Channel:
    """One direction at a time, one thread at a time: who copies holds the lock.

    stream  its copies follow each other in it
    """

    def __init__(self, driver: Driver, stream: Stream) -> None:
        """Raises DeviceFull, DeviceLost."""
        self.lock = threading.Lock()
        self.stream = stream
        self._driver = driver
        self._pieces = [(driver.pinned(PIECE_BYTES), driver.event()) for _ in range(PIECES)]
        self._mark = driver.event()
        self._next = 0

    def after(self, other: Stream) -> None:
        """What is copied from now on comes after all that stream has been given."""
        self._driver.record(self._mark, other)
        self._driver.after(self.stream, self._mark)

    def write(self, places: Iterable[Place], values: U8) -> None:
        """In the stream's order; values may change as soon as this returns."""
        begin = 0
        for parts, num_bytes in _pieces_of(places):
            memory, event = self._take()
            self._driver.wait(event)
            memory[:num_bytes] = values[begin : begin + num_bytes]
            for address, at, count in parts:
                self._driver.upload(address, memory[at : at + count], self.stream)
            self._driver.record(event, self.stream)
            begin += num_bytes

    def read(self, places: Iterable[Place], out: U8) -> None:
        """out is there when this returns."""
        begin = 0
        waiting: deque[tuple[int, int, int]] = deque()  # piece, and the bytes of out it is for
        for parts, num_bytes in _pieces_of(places):
            if len(waiting) == PIECES:
                self._finish(out, *waiting.popleft())
            index = self._next
            memory, event = self._take()
            for address, at, count in parts:
                self._driver.download(memory[at : at + count], address, self.stream)
            self._driver.record(event, self.stream)
            waiting.append((index, begin, begin + num_bytes))
            begin += num_bytes
        while waiting:
            self._finish(out, *waiting.popleft())

    def _take(self) -> tuple[U8, object]:
        piece = self._pieces[self._next]
        self._next = (self._next + 1) % PIECES
        return piece

    def _finish(self, out: U8, index: int, begin: int, end: int) -> None:
        memory, event = self._pieces[index]
        self._driver.wait(event)
        out[begin:end] = memory[: end - begin]

    def close(self) -> None:
        """Nothing is on its way."""
        self._pieces.clear()
        del self._mark, self.stream


def _pieces_of(places: Iterable[Place]) -> Iterator[tuple[list[tuple[int, int, int]], int]]:
    """The places cut to pieces: parts (address, offset in the piece, bytes), and bytes in all."""
    parts: list[tuple[int, int, int]] = []
    used = 0
    for address, num_bytes in places:
        while num_bytes:
            count = min(num_bytes, PIECE_BYTES - used)
            parts.append((address, used, count))
            address, num_bytes, used = address + count, num_bytes - count, used + count
            if used == PIECE_BYTES:
                yield parts, used
                parts, used = [], 0
    if parts:
        yield parts, used


def runs_of(*arrays: Array) -> tuple[int, list[list[int]]]:
    """Arrays of one shape as runs that are contiguous in each of them.

    Bytes of a run, and for each array the distances of its runs from its begin, in order.
    """
    shape, run = arrays[0].shape, arrays[0].itemsize
    assert all(a.shape == shape and a.itemsize == run for a in arrays), [a.shape for a in arrays]
    axis = len(shape)
    while axis and all(shape[axis - 1] == 1 or a.strides[axis - 1] == run for a in arrays):
        axis -= 1
        run *= shape[axis]
    return run, [_distances(shape[:axis], array.strides[:axis]) for array in arrays]


def _distances(shape: tuple[int, ...], strides: tuple[int, ...]) -> list[int]:
    distances = [0]
    for size, stride in zip(shape, strides, strict=True):
        distances = [begin + i * stride for begin in distances for i in range(size)]
    return distances


def bytes_of(array: Array) -> U8:
    """A contiguous array, flat."""
    return array.reshape(-1).view(np.uint8)
