"""weights.pack: a model in the kernels' order, in a file that several processes map (PACK.md).

    header (64 bytes) | index (JSON) | 0... | tensor | 0... | tensor | 0...

Tensors begin at multiples of 4096. Nothing is ever written through the mapping. A pack is made in a
folder that catalog.py renames into its place when all of it is synced, so a pack is whole.
"""

import json
import mmap
import os
import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import xxhash

from kernels.layout import LAYOUT_VERSION, pack_matrix, packed_bytes, unpack_matrix
from kernels.ops import F32, U8, Matrix
from workers.model.config import BadModel, ModelConfig
from workers.model.convert import Converted, convert, kind_of
from workers.model.gguf_file import GgufTensor

MAGIC: Final = b"LOCKPACK"
PACK_VERSION: Final = 1
HEADER: Final = struct.Struct("<8sHHIQI16s16xI")  # the table of PACK.md
ALIGNMENT: Final = 4096

Progress = Callable[[str, int, int], None]  # what is done, bytes so far, bytes in all


class OtherLayout(BadModel):
    """The pack is of another version: it must be made again from its GGUF."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor of the index.

    shape   (values,) of a vector, (rows, cols) of a matrix
    offset  of its first byte in the file
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    offset: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Packed:
    """What became of one tensor, for the table that `lockstep model add` prints."""

    name: str
    source_type: str
    kind: str
    source_bytes: int
    packed_bytes: int
    error: float


class Weights:
    """A mapped pack. matrix() and vector() give read-only views, valid while the Weights live."""

    def __init__(
        self,
        config: ModelConfig,
        metadata: Any,
        digest: str,
        entries: Sequence[Entry],
        data: U8,
    ) -> None:
        self.config = config
        self.digest = digest
        self._metadata = metadata
        self._entries = {entry.name: entry for entry in entries}
        self._data = data

    @classmethod
    def open(cls, path: Path) -> "Weights":
        """Raises OtherLayout, or BadModel when the file is damaged."""
        try:
            with path.open("rb") as file:
                header = file.read(HEADER.size)
                size = os.fstat(file.fileno()).st_size
                index_bytes, index_crc, digest = _read_header(path, header, size)
                index = file.read(index_bytes)
                mapping = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        except OSError as error:
            raise BadModel(f"{path} cannot be read: {error.strerror}") from error
        if zlib.crc32(index) != index_crc:
            raise BadModel(f"{path} is damaged: its index has another checksum")
        try:
            parts = json.loads(index)
            config, metadata = ModelConfig.from_json(parts["config"]), parts["metadata"]
            entries = [Entry(n, k, tuple(s), at, size) for n, k, s, at, size in parts["tensors"]]
        except (ValueError, TypeError, KeyError) as error:
            raise BadModel(f"{path} is damaged: its index lacks {error}") from error
        return cls(config, metadata, digest, entries, np.frombuffer(mapping, np.uint8))

    def check(self, progress: Progress) -> None:
        """Read every byte and compare the digest, which open() trusts. Raises BadModel."""
        digest = _Digest(self._metadata)
        for entry in self._entries.values():
            progress(f"checking {entry.name}", entry.offset, self._data.size)
            digest.add(entry.name, entry.kind, entry.shape, self._raw(entry))
        if digest.hexdigest() != self.digest:
            raise BadModel(
                f"the weights are damaged: digest {digest.hexdigest()}, not {self.digest}"
            )

    def has(self, name: str) -> bool:
        return name in self._entries

    def matrix(self, name: str) -> Matrix:
        entry = self._entries[name]
        rows, cols = entry.shape
        return Matrix(entry.kind, rows, cols, self._bytes(entry))

    def vector(self, name: str) -> F32:
        """A norm's weight, a bias: (values,) float32."""
        entry = self._entries[name]
        assert entry.kind == "f32" and len(entry.shape) == 1, entry
        return self._bytes(entry).view(np.float32)

    def _raw(self, entry: Entry) -> npt.NDArray[np.generic]:
        """As it lay in the GGUF."""
        if len(entry.shape) == 1:
            return self._bytes(entry)
        return unpack_matrix(entry.kind, self._bytes(entry), *entry.shape)

    def _bytes(self, entry: Entry) -> U8:
        return self._data[entry.offset : entry.offset + entry.num_bytes]


class _Digest:
    """Of what the weights are, whatever order the kernels want them in."""

    def __init__(self, metadata: Any) -> None:
        self._hash = xxhash.xxh3_128(json.dumps(metadata, sort_keys=True).encode())

    def add(
        self, name: str, kind: str, shape: tuple[int, ...], raw: npt.NDArray[np.generic]
    ) -> None:
        self._hash.update(json.dumps([name, kind, shape]).encode())
        self._hash.update(np.ascontiguousarray(raw).view(np.uint8).data)

    def hexdigest(self) -> str:
        return self._hash.hexdigest()


def _read_header(path: Path, header: bytes, size: int) -> tuple[int, int, str]:
    """(bytes of the index, its crc32, digest of the weights)"""
    if len(header) < HEADER.size:
        raise BadModel(f"{path} is damaged: it has {size} bytes")
    magic, version, layout, index_bytes, file_bytes, index_crc, digest, crc = HEADER.unpack(header)
    if magic != MAGIC:
        raise BadModel(f"{path} is not a weights pack")
    if (version, layout) != (PACK_VERSION, LAYOUT_VERSION):
        raise OtherLayout(
            f"{path} has version {version}, layout {layout}; "
            f"this program reads version {PACK_VERSION}, layout {LAYOUT_VERSION}"
        )
    if crc != zlib.crc32(header[:-4]):
        raise BadModel(f"{path} is damaged: its header has another checksum")
    if size != file_bytes:
        raise BadModel(f"{path} is damaged: it has {size} bytes, not {file_bytes}")
    return index_bytes, index_crc, digest.hex()


def write_pack(
    path: Path,
    config: ModelConfig,
    metadata: Any,
    tensors: Sequence[GgufTensor],
    progress: Progress,
) -> tuple[str, list[Packed]]:
    """Write the pack. Gives the digest of the weights, and what became of each tensor.

    metadata  what of the GGUF's fields shapes the computation: part of the digest
    tensors   one is converted, packed and written at a time

    Raises BadModel when a tensor cannot be converted; then the file must be thrown away.
    """
    entries = _place(config, metadata, tensors)
    index = _index(config, metadata, entries)
    digest = _Digest(metadata)
    total = sum(tensor.data.nbytes for tensor in tensors)
    packed, done = [], 0
    with path.open("wb") as file:
        for tensor, entry in zip(tensors, entries, strict=True):
            progress(f"packing {tensor.name}", done, total)
            converted = convert(tensor)
            digest.add(tensor.name, converted.kind, tensor.shape, converted.raw)
            file.seek(entry.offset)
            file.write(_in_kernel_order(converted, entry).data)
            done += tensor.data.nbytes
            packed.append(_report(tensor, converted, entry))
        file_bytes = _end(entries)
        file.truncate(file_bytes)
        file.seek(0)
        file.write(_header(index, file_bytes, bytes.fromhex(digest.hexdigest())) + index)
        file.flush()
        os.fsync(file.fileno())
    progress("packed", total, total)
    return digest.hexdigest(), packed


def _place(config: ModelConfig, metadata: Any, tensors: Sequence[GgufTensor]) -> list[Entry]:
    """Where each tensor will lie: their sizes are known before they are converted."""
    names = [Entry(t.name, kind_of(t), t.shape, 0, _size(t)) for t in tensors]
    offset = (
        HEADER.size + len(_index(config, metadata, names)) + 16 * len(names)
    )  # offsets take more digits
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


def _in_kernel_order(converted: Converted, entry: Entry) -> U8:
    if len(entry.shape) == 1:
        return converted.raw.view(np.uint8)
    data = pack_matrix(converted.kind, converted.raw, *entry.shape)
    assert data.nbytes == entry.num_bytes, (entry, data.nbytes)
    return data


def _report(tensor: GgufTensor, converted: Converted, entry: Entry) -> Packed:
    return Packed(
        tensor.name,
        tensor.type.name,
        converted.kind,
        tensor.data.nbytes,
        entry.num_bytes,
        converted.error,
    )
