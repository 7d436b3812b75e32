"""Writes weights.pack from the tensors of a GGUF. See PACK.md; pack.py reads it."""

import json
import os
import struct
import zlib
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from io import BufferedWriter
from math import sqrt
from pathlib import Path
from shutil import disk_usage
from typing import Any, Final

import numpy as np

from kernels.layout import LAYOUT_VERSION, pack_matrix, packed_bytes
from kernels.ops import U8
from workers.model.config import BadModel, ModelConfig
from workers.model.convert import Piece, convert, kind_of, piece_rows
from workers.model.gguf_file import GgufTensor
from workers.model.pack import (
    ALIGNMENT,
    HEADER,
    MAGIC,
    PACK_VERSION,
    Digest,
    Entry,
    Progress,
)

OFFSET_DIGITS: Final = 16  # of a number in the index, before it is known
SPARE_BYTES: Final = 64 << 20  # left of the disk behind a pack
SYNC_BYTES: Final = 256 << 20


@dataclass(frozen=True, slots=True)
class Packed:
    """What became of one tensor, for the table that `lockstep model add` prints.

    error  root mean square of the change, relative to that of the weights; 0.0: nothing changed
    """

    name: str
    source_type: str
    kind: str
    source_bytes: int
    packed_bytes: int
    error: float


def write_pack(
    path: Path,
    config: ModelConfig,
    metadata: Any,
    tensors: Sequence[GgufTensor],
    progress: Progress,
) -> tuple[str, list[Packed]]:
    """Write the pack. Gives the digest of the weights, and what became of each tensor.

    metadata  what of the GGUF's fields shapes the computation: part of the digest
    tensors   in ascending order of name; some rows of them are in memory at a time

    Raises BadModel when a tensor cannot be converted or the disk is too full; then the file must be
    thrown away.
    """
    entries = _place(config, metadata, tensors)
    index, file_bytes = _index(config, metadata, entries), _end(entries)
    _expect_space(path, file_bytes)
    digest = Digest(metadata)
    with path.open("wb") as file, ThreadPoolExecutor(num_cores()) as pool:
        changes = _write_tensors(file, _works(tensors, entries), digest, pool, progress)
        file.truncate(file_bytes)
        file.seek(0)
        file.write(_header(index, file_bytes, bytes.fromhex(digest.hexdigest())) + index)
        file.flush()
        os.fsync(file.fileno())
    total = sum(tensor.num_bytes for tensor in tensors)
    progress("packed", total, total)
    return digest.hexdigest(), [
        _report(tensor, entry, *changes[entry.name])
        for tensor, entry in zip(tensors, entries, strict=True)
    ]


def num_cores() -> int:
    """Threads that convert: NumPy lets go of the interpreter while it copies."""
    return min(8, os.cpu_count() or 1)


def _expect_space(path: Path, file_bytes: int) -> None:
    free = disk_usage(path.parent).free
    if free < file_bytes + SPARE_BYTES:
        raise BadModel(
            f"the pack takes {file_bytes / 2**30:.1f} GiB, but only {free / 2**30:.1f} GiB of the "
            f"disk of {path.parent.parent} are free"
        )


@dataclass(frozen=True, slots=True)
class Work:
    """Rows at [begin, end) of a tensor, to be made ready; a vector is one row."""

    tensor: GgufTensor
    entry: Entry
    begin: int
    end: int

    def do(self) -> tuple[Piece, U8]:
        """The piece, and its bytes in the kernels' order."""
        piece = convert(self.tensor, self.begin, self.end)
        if len(self.entry.shape) == 1:
            return piece, piece.raw.view(np.uint8).reshape(-1)
        rows, cols = self.end - self.begin, self.entry.shape[1]
        return piece, pack_matrix(self.entry.kind, piece.raw, rows, cols)


def _works(tensors: Sequence[GgufTensor], entries: Sequence[Entry]) -> list[Work]:
    """All pieces in the order of the file: tiles do not know of each other."""
    works = []
    for tensor, entry in zip(tensors, entries, strict=True):
        rows, step = 1 if len(entry.shape) == 1 else entry.shape[0], piece_rows(tensor)
        for begin in range(0, rows, step):
            works.append(Work(tensor, entry, begin, min(begin + step, rows)))
    return works


def _write_tensors(
    file: BufferedWriter,
    works: Sequence[Work],
    digest: Digest,
    pool: ThreadPoolExecutor,
    progress: Progress,
) -> dict[str, tuple[float, float]]:
    """Write all pieces. Gives each tensor's change and weights, as in Piece."""
    total = sum((work.end - work.begin) * work.tensor.row_bytes for work in works)
    changes: dict[str, tuple[float, float]] = {}
    done, unsynced = 0, 0
    for work, (piece, data) in _done_in_order(works, pool):
        entry = work.entry
        progress(f"packing {entry.name}", done, total)
        if work.begin == 0:
            digest.begin(entry.name, entry.kind, entry.shape)
            file.seek(entry.offset)
        digest.add(piece.raw)
        file.write(data.data)
        change, weights = changes.get(entry.name, (0.0, 0.0))
        changes[entry.name] = change + piece.change, weights + piece.weights
        done, unsynced = done + len(piece.raw) * work.tensor.row_bytes, unsynced + data.nbytes
        if unsynced >= SYNC_BYTES:  # so that the disk works all the time and not at the end
            unsynced = 0
            file.flush()
            os.fdatasync(file.fileno())
    return changes


def _done_in_order(
    works: Sequence[Work], pool: ThreadPoolExecutor
) -> Iterator[tuple[Work, tuple[Piece, U8]]]:
    """Each work with what it gave; a few are done ahead of the one in hand."""
    ahead: deque[tuple[Work, Future[tuple[Piece, U8]]]] = deque()
    for work in works:
        ahead.append((work, pool.submit(work.do)))
        if len(ahead) > 2 * num_cores():
            work, made = ahead.popleft()
            yield work, made.result()
    for work, made in ahead:
        yield work, made.result()


def _place(config: ModelConfig, metadata: Any, tensors: Sequence[GgufTensor]) -> list[Entry]:
    """Where each tensor will lie: their sizes are known before they are converted."""
    names = [Entry(t.name, kind_of(t), t.shape, 0, _size(t)) for t in tensors]
    offset = HEADER.size + len(_index(config, metadata, names)) + OFFSET_DIGITS * len(names)
    entries = []
    for entry in names:
        offset = _aligned(offset)
        entries.append(Entry(entry.name, entry.kind, entry.shape, offset, entry.num_bytes))
        offset += entry.num_bytes
    return entries


def _size(tensor: GgufTensor) -> int:
    if len(tensor.shape) == 1:
        return 4 * tensor.shape[0]
    rows, cols = tensor.shape
    return packed_bytes(kind_of(tensor), rows, cols)


def _aligned(offset: int) -> int:
    return -(-offset // ALIGNMENT) * ALIGNMENT


def _end(entries: Sequence[Entry]) -> int:
    return max(_aligned(entry.offset + entry.num_bytes) for entry in entries)


def _index(config: ModelConfig, metadata: Any, entries: Sequence[Entry]) -> bytes:
    tensors = [[e.name, e.kind, e.shape, e.offset, e.num_bytes] for e in entries]
    index = {"config": config.to_json(), "metadata": metadata, "tensors": tensors}
    return json.dumps(index).encode()


def _header(index: bytes, file_bytes: int, digest: bytes) -> bytes:
    head = HEADER.pack(
        MAGIC, PACK_VERSION, LAYOUT_VERSION, len(index), file_bytes, zlib.crc32(index), digest, 0
    )
    return head[:-4] + struct.pack("<I", zlib.crc32(head[:-4]))


def _report(tensor: GgufTensor, entry: Entry, change: float, weights: float) -> Packed:
    error = sqrt(change / weights) if weights else 0.0
    source = (tensor.name, tensor.type.name, entry.kind)
    return Packed(*source, tensor.num_bytes, entry.num_bytes, error)
