"""Writes weights.pack from the tensors of a GGUF. See PACK.md; pack.py reads it."""

import json
import os
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from io import BufferedWriter
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np

from kernels.layout import LAYOUT_VERSION, pack_matrix, packed_bytes
from kernels.ops import U8
from workers.model.config import ModelConfig
from workers.model.convert import Piece, convert, kind_of
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

OFFSET_DIGITS = 16  # of a number in the index, before it is known


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
    tensors   in ascending order of name; some rows of one are in memory at a time

    Raises BadModel when a tensor cannot be converted; then the file must be thrown away.
    """
    entries = _place(config, metadata, tensors)
    index = _index(config, metadata, entries)
    digest = Digest(metadata)
    total = sum(tensor.data.nbytes for tensor in tensors)
    packed, done = [], 0
    with path.open("wb") as file:
        for tensor, entry in zip(tensors, entries, strict=True):
            progress(f"packing {tensor.name}", done, total)
            digest.begin(entry.name, entry.kind, entry.shape)
            file.seek(entry.offset)
            error = _write_tensor(file, tensor, entry, digest)
            done += tensor.data.nbytes
            packed.append(_report(tensor, entry, error))
        file_bytes = _end(entries)
        file.truncate(file_bytes)
        file.seek(0)
        file.write(_header(index, file_bytes, bytes.fromhex(digest.hexdigest())) + index)
        file.flush()
        os.fsync(file.fileno())
    progress("packed", total, total)
    return digest.hexdigest(), packed


def _write_tensor(file: BufferedWriter, tensor: GgufTensor, entry: Entry, digest: Digest) -> float:
    """Write all pieces of a tensor one after the other: tiles do not know of each other."""
    change = weights = 0.0
    for piece in convert(tensor):
        digest.add(piece.raw)
        file.write(_in_kernel_order(piece, entry).data)
        change, weights = change + piece.change, weights + piece.weights
    assert file.tell() == entry.offset + entry.num_bytes, (entry, file.tell())
    return sqrt(change / weights) if weights else 0.0


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


def _in_kernel_order(piece: Piece, entry: Entry) -> U8:
    if len(entry.shape) == 1:
        return piece.raw.view(np.uint8)
    return pack_matrix(entry.kind, piece.raw, len(piece.raw), entry.shape[1])


def _report(tensor: GgufTensor, entry: Entry, error: float) -> Packed:
    source = (tensor.name, tensor.type.name, entry.kind)
    return Packed(*source, tensor.data.nbytes, entry.num_bytes, error)
