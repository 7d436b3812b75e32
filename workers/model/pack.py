"""weights.pack: a model in the kernels' order, in a file that several processes map (PACK.md).

    header (64 bytes) | index (JSON) | 0... | tensor | 0... | tensor | 0...

Tensors begin at multiples of 4096. Nothing is ever written through the mapping. packer.py writes a
pack, in a folder that catalog.py renames into its place when all is synced: so a pack is whole.
"""

import json
import mmap
import os
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
import numpy.typing as npt
import xxhash

from kernels.arrays import HOST, Arrays
from kernels.layout import LAYOUT_VERSION, TILE_ROWS, packed_bytes, unpack_matrix
from kernels.ops import F32, U8, Matrix
from workers.model.config import BadModel, ModelConfig

MAGIC: Final = b"LOCKPACK"
PACK_VERSION: Final = 2
HEADER: Final = struct.Struct("<8sHHIQI16s16xI")  # the table of PACK.md
ALIGNMENT: Final = 4096
HUGE_PAGE: Final = 2 << 20
READ_BYTES: Final = 1 << 28  # of one read
PRIVATE: Final = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
CHECKED_ROWS: Final = 64 * TILE_ROWS  # rows of a matrix that check() reads at once

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


class Weights:
    """A mapped pack. matrix() and vector() are what ops take, values() is what anybody may read.

    arrays  where the ops find it; views of the pack, read-only, valid while the Weights live
    """

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
        self._data = self._placed = data
        self.arrays: Arrays = HOST

    @classmethod
    def open(cls, path: Path, *, in_huge_pages: bool = False) -> "Weights":
        """in_huge_pages: read into memory of this process alone, which is faster where files lie
        in small pages, instead of mapped. Raises OtherLayout, or BadModel when the file is damaged.
        """
        try:
            with path.open("rb") as file:
                header = file.read(HEADER.size)
                size = os.fstat(file.fileno()).st_size
                index_bytes, index_crc, digest = _read_header(path, header, size)
                index = file.read(index_bytes)
                mapping = _huge_copy(file, size) if in_huge_pages else _mapped(file)
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

    def place(self, arrays: Arrays) -> None:
        """Where the ops find it from now on. Raises DeviceFull, DeviceLost."""
        self.arrays, self._placed = arrays, arrays.constant(self._data)

    def check(self, progress: Progress) -> None:
        """Read every byte and compare the digest, which open() trusts. Raises BadModel."""
        digest = Digest(self._metadata)
        for entry in self._entries.values():
            progress(f"checking {entry.name}", entry.offset, self._data.size)
            digest.begin(entry.name, entry.kind, entry.shape)
            for raw in self._raw(entry):
                digest.add(raw)
        if digest.hexdigest() != self.digest:
            raise BadModel(
                f"the weights are damaged: digest {digest.hexdigest()}, not {self.digest}"
            )

    def entries(self) -> list[Entry]:
        return list(self._entries.values())

    def has(self, name: str) -> bool:
        return name in self._entries

    def matrix(self, name: str) -> Matrix:
        entry = self._entries[name]
        rows, cols = entry.shape
        return Matrix(entry.kind, rows, cols, _part(self._placed, entry))

    def vector(self, name: str) -> F32:
        """A norm's weight, a bias: (values,) float32."""
        entry = self._entries[name]
        assert entry.kind == "f32" and len(entry.shape) == 1, entry
        return _part(self._placed, entry).view(np.float32)

    def values(self, name: str) -> F32:
        """A vector, or a matrix of kind f32 in rows and columns."""
        entry = self._entries[name]
        assert entry.kind == "f32", entry
        data = _part(self._data, entry)
        if len(entry.shape) == 2:
            return unpack_matrix("f32", data, *entry.shape).view(np.float32)
        return data.view(np.float32)

    def _raw(self, entry: Entry) -> Iterator[npt.NDArray[np.generic]]:
        """Some rows at a time, as they lay in the GGUF."""
        if len(entry.shape) == 1:
            yield _part(self._data, entry)
            return
        rows, cols = entry.shape
        tile_bytes = packed_bytes(entry.kind, TILE_ROWS, cols)
        for begin in range(0, rows, CHECKED_ROWS):
            num_rows = min(CHECKED_ROWS, rows - begin)
            at = begin // TILE_ROWS * tile_bytes
            data = _part(self._data, entry)[at : at + packed_bytes(entry.kind, num_rows, cols)]
            yield unpack_matrix(entry.kind, data, num_rows, cols)


def _part(data: U8, entry: Entry) -> U8:
    return data[entry.offset : entry.offset + entry.num_bytes]


def _mapped(file: BinaryIO) -> memoryview:
    return memoryview(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))


def _huge_copy(file: BinaryIO, size: int) -> memoryview:
    """The whole file, read-only, in memory that the kernel is asked to give in 2 MiB pages."""
    memory = mmap.mmap(-1, -(-size // HUGE_PAGE) * HUGE_PAGE, flags=PRIVATE)
    memory.madvise(mmap.MADV_HUGEPAGE)
    whole, done = memoryview(memory)[:size], 0
    file.seek(0)
    while done < size:
        count = file.readinto(whole[done : done + READ_BYTES])  # type: ignore[attr-defined]
        if not count:
            raise BadModel(f"the weights end after {done} bytes of {size}")
        done += count
    return whole.toreadonly()


class Digest:
    """Of what the weights are, whatever order the kernels want them in."""

    def __init__(self, metadata: Any) -> None:
        self._hash = xxhash.xxh3_128(json.dumps(metadata, sort_keys=True).encode())

    def begin(self, name: str, kind: str, shape: tuple[int, ...]) -> None:
        """A tensor follows."""
        self._hash.update(json.dumps([name, kind, shape]).encode())

    def add(self, raw: npt.NDArray[np.generic]) -> None:
        """Its next rows, as GGUF orders them."""
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
