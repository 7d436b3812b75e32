"""Walks over a GGUF's metadata before it is read: no damaged length makes the reader run away.

    file    := "GGUF" version:u32 tensors:u64 fields:u64 field* tensor* data
    field   := key:string type:u32 value        value := number | string | array
    string  := length:u64 bytes                 array := type:u32 length:u64 value*
    tensor  := name:string dims:u32 size:u64* type:u32 offset:u64

Source: the GGUF page of the ggml project. Little-endian, versions 2 and 3.
"""

import mmap
import struct
from pathlib import Path
from typing import Final

from workers.model.config import BadModel

MAGIC: Final = b"GGUF"
VERSIONS: Final = (2, 3)
STRING, ARRAY = 8, 9
# bytes of a value, by its type: integers of 1, 2, 4 bytes, float, bool, then those of 8 bytes
SIZES: Final = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
MAX_DIMS: Final = 4
U32: Final = struct.Struct("<I")
U64: Final = struct.Struct("<Q")


def scan(path: Path) -> None:
    """Raises BadModel when the file is no GGUF, or its metadata does not hold together."""
    try:
        with path.open("rb") as file:
            magic = file.read(4)
            if magic != MAGIC:
                raise BadModel(f"{path.name} is not a GGUF file: it begins with {magic!r}")
            with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as data:
                _Walk(path.name, data).over_file()
    except OSError as error:
        raise BadModel(f"{path} cannot be read: {error.strerror}") from error


class _Walk:
    """A position in the file; each step checks that the file is long enough."""

    def __init__(self, name: str, data: mmap.mmap) -> None:
        self.name, self.data, self.at = name, data, len(MAGIC)

    def over_file(self) -> None:
        version = self.u32("version")
        if version not in VERSIONS:
            raise BadModel(f"{self.name} has GGUF version {version}, not 2 or 3")
        num_tensors, num_fields = self.u64("header"), self.u64("header")
        for _ in range(num_fields):
            key = self.string("metadata")
            self.value(self.u32(key), key)
        for _ in range(num_tensors):
            self.tensor()

    def value(self, kind: int, key: str, depth: int = 0) -> None:
        if kind == STRING:
            self.string(key)
        elif kind == ARRAY and depth < MAX_DIMS:
            self.array(self.u32(key), self.u64(key), key, depth)
        elif kind in SIZES:
            self.skip(SIZES[kind], key)
        else:
            raise BadModel(f"{self.name} is damaged: {key} has the unknown type {kind}")

    def array(self, kind: int, length: int, key: str, depth: int) -> None:
        if kind in SIZES:
            self.skip(length * SIZES[kind], key)
        else:
            for _ in range(length):
                self.value(kind, key, depth + 1)

    def tensor(self) -> None:
        name = self.string("the list of tensors")
        num_dims = self.u32(name)
        if num_dims > MAX_DIMS:
            raise BadModel(f"{self.name} is damaged: tensor {name} has {num_dims} dimensions")
        self.skip(8 * num_dims + 4 + 8, name)

    def u32(self, what: str) -> int:
        return int(U32.unpack_from(self.data, self.skip(4, what))[0])

    def u64(self, what: str) -> int:
        return int(U64.unpack_from(self.data, self.skip(8, what))[0])

    def string(self, what: str) -> str:
        length = self.u64(what)
        begin = self.skip(length, what)
        return self.data[begin : begin + min(length, 100)].decode("utf-8", "replace")

    def skip(self, num_bytes: int, what: str) -> int:
        """Go on by num_bytes, and give the position before."""
        begin, size = self.at, len(self.data)
        if num_bytes > size - begin:
            raise BadModel(f"{self.name} is truncated or damaged: its {size} bytes end in {what!r}")
        self.at += num_bytes
        return begin
