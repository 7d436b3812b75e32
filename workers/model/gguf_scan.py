"""Reads a GGUF's metadata: what it says of the model and where its tensors lie, not the tensors.

    file    := "GGUF" version:u32 tensors:u64 fields:u64 field* tensor* padding data
    field   := key:string type:u32 value        value := number | string | array
    string  := length:u64 bytes                 array := type:u32 length:u64 value*
    tensor  := name:string dims:u32 size:u64* type:u32 offset:u64

Every length is held against the bytes that are left before anything is made of it, so a damaged
one ends in one sentence. A vocabulary of 248,320 tokens takes about a second.

Source: the GGUF page of the ggml project. Little-endian, versions 2 and 3.
"""

import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn

import numpy as np

from workers.model.config import BadModel

MAGIC: Final = b"GGUF"
VERSIONS: Final = (2, 3)
STRING, ARRAY, BOOL = 8, 9, 7
# a value's dtype, by its type
NUMBERS: Final = {
    **{0: "u1", 1: "i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", BOOL: "u1"},
    **{10: "<u8", 11: "<i8", 12: "<f8"},
}
MAX_DIMS: Final = 4
MAX_SIZE: Final = 1 << 40  # of one dimension
MIN_FIELD_BYTES, MIN_TENSOR_BYTES = 8 + 4 + 1, 8 + 4 + 4 + 8
U32: Final = struct.Struct("<I")
U64: Final = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One line of the list of tensors.

    shape   row-major, last index fastest
    type    number of its type, not yet known to be one
    offset  from the beginning of the data
    """

    name: str
    shape: tuple[int, ...]
    type: int
    offset: int


@dataclass(frozen=True, slots=True)
class Header:
    """All before the data.

    fields  the metadata by key, as Python values
    end     first byte behind it; the data begins at the next multiple of general.alignment
    size    bytes of the file
    """

    fields: Mapping[str, Any]
    tensors: tuple[TensorInfo, ...]
    end: int
    size: int


def scan(path: Path) -> Header:
    """Raises BadModel when the file is no GGUF, or its metadata does not hold together."""
    if path.exists() and not path.is_file() and not path.is_dir():
        raise BadModel(f"{path} is no regular file")  # a pipe would be waited for
    try:
        with path.open("rb") as file:
            magic = file.read(4)
            if magic != MAGIC:
                raise BadModel(f"{path.name} is not a GGUF file: it begins with {magic!r}")
            with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as data:
                return _Walk(path.name, data).over_file()
    except OSError as error:
        raise BadModel(f"{path} cannot be read: {error.strerror}") from error


class _Walk:
    """A position in the file; each step checks that the file is long enough."""

    def __init__(self, name: str, data: mmap.mmap) -> None:
        self.name, self.data, self.at, self.size = name, data, len(MAGIC), len(data)

    def over_file(self) -> Header:
        version = self.u32("version")
        if version not in VERSIONS:
            raise BadModel(f"{self.name} has GGUF version {version}, not 2 or 3")
        num_tensors, num_fields = self.u64("header"), self.u64("header")
        self.expect(num_fields, MIN_FIELD_BYTES, "metadata")
        fields: dict[str, Any] = {}
        for _ in range(num_fields):
            key = self.word("metadata")
            value = self.value(self.u32(key), key)
            if key in fields:
                self.damaged(f"{key} is there twice")
            fields[key] = value
        self.expect(num_tensors, MIN_TENSOR_BYTES, "the list of tensors")
        tensors = tuple(self.tensor() for _ in range(num_tensors))
        return Header(fields, tensors, self.at, self.size)

    def value(self, kind: int, key: str, depth: int = 0) -> Any:
        if kind == STRING:
            return self.string(key)
        if kind == ARRAY and depth < MAX_DIMS:
            return self.array(self.u32(key), self.u64(key), key, depth)
        if kind in NUMBERS:
            return self.numbers(kind, 1, key)[0]
        self.damaged(f"{key} has the unknown type {kind}")

    def array(self, kind: int, length: int, key: str, depth: int) -> list[Any]:
        if kind in NUMBERS:
            return self.numbers(kind, length, key)
        if kind == STRING:
            return self.strings(length, key)
        self.expect(length, U32.size + U64.size, key)
        return [self.value(kind, key, depth + 1) for _ in range(length)]

    def numbers(self, kind: int, length: int, key: str) -> list[Any]:
        dtype = np.dtype(NUMBERS[kind])
        begin = self.skip(length * dtype.itemsize, key)
        found = np.frombuffer(self.data[begin : self.at], dtype)
        return list((found != 0).tolist() if kind == BOOL else found.tolist())

    def strings(self, length: int, key: str) -> list[str]:
        """The one hot loop of this file: a vocabulary and its merges are half a million strings."""
        self.expect(length, U64.size, key)
        data, at, size, found = self.data, self.at, self.size, []
        try:
            for _ in range(length):
                begin = at + 8
                at = begin + int.from_bytes(data[at:begin], "little")
                if begin > size or at > size:
                    self.ends_in(key)
                found.append(data[begin:at].decode())
        except UnicodeDecodeError:
            self.damaged(f"{key} holds text that is not UTF-8")
        self.at = at
        return found

    def string(self, what: str) -> str:
        return self.strings(1, what)[0]

    def word(self, what: str) -> str:
        """A name: of a key, or of a tensor."""
        name = self.string(what)
        if not name or not name.isprintable():
            self.damaged(f"{what} names something {name[:100]!r}")
        return name

    def tensor(self) -> TensorInfo:
        name = self.word("the list of tensors")
        num_dims = self.u32(name)
        if not 0 < num_dims <= MAX_DIMS:
            self.damaged(f"tensor {name} has {num_dims} dimensions")
        shape = tuple(self.u64(name) for _ in range(num_dims))[::-1]
        if not all(0 < size <= MAX_SIZE for size in shape):
            self.damaged(f"tensor {name} has shape {shape}")
        return TensorInfo(name, shape, self.u32(name), self.u64(name))

    def u32(self, what: str) -> int:
        return int(U32.unpack_from(self.data, self.skip(4, what))[0])

    def u64(self, what: str) -> int:
        return int(U64.unpack_from(self.data, self.skip(8, what))[0])

    def skip(self, num_bytes: int, what: str) -> int:
        """Go on by num_bytes, and give the position before."""
        begin = self.at
        if num_bytes > self.size - begin:
            self.ends_in(what)
        self.at += num_bytes
        return begin

    def expect(self, count: int, least_bytes: int, what: str) -> None:
        """So many things follow, each of so many bytes at least."""
        if count * least_bytes > self.size - self.at:
            self.ends_in(what)

    def ends_in(self, what: str) -> NoReturn:
        shown = what[:100]
        raise BadModel(
            f"{self.name} is truncated or damaged: its {self.size} bytes end in {shown!r}"
        )

    def damaged(self, what: str) -> NoReturn:
        raise BadModel(f"{self.name} is damaged: {what[:300]}")
