"""A GGUF file, or all parts of a split one, opened; and in one sentence what is wrong with it.

Tensors are read some rows at a time, with pread into memory of our own: a 15 GB file costs no more
than the rows in hand, and a file cut short while it is read is an error, not a signal.
"""

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
from gguf import GGML_QUANT_SIZES
from gguf import GGMLQuantizationType as Type

from kernels.ops import U8
from workers.model.config import BadModel
from workers.model.gguf_scan import Header, TensorInfo, scan

ALIGNMENT: Final = "general.alignment"
ALIGNMENTS: Final = frozenset(1 << power for power in range(21))
SPLIT_COUNT, SPLIT_NO = "split.count", "split.no"
SPLIT_NAME: Final = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf")
MAX_PARTS: Final = 1000
TYPES: Final = {int(kind): kind for kind in GGML_QUANT_SIZES}
KEPT_IN_CACHE: Final = 1 << 30  # a larger file is dropped from the page cache behind the reader


class Source(Protocol):
    """Where a tensor's bytes are."""

    def read(self, begin: int, num_bytes: int) -> U8:
        """A fresh array of these bytes of the source. Raises BadModel."""


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """One tensor as GGUF orders it.

    shape   row-major: (values,) or (rows, cols), or more
    begin   of its first byte in the source
    """

    name: str
    type: Type
    shape: tuple[int, ...]
    source: Source
    begin: int = 0

    @property
    def row_bytes(self) -> int:
        block, block_bytes = GGML_QUANT_SIZES[self.type]
        return self.shape[-1] // block * block_bytes

    @property
    def num_bytes(self) -> int:
        return prod(self.shape[:-1]) * self.row_bytes

    def rows(self, begin: int, end: int) -> U8:
        """(end - begin, row_bytes) of the rows at [begin, end). Raises BadModel."""
        at = self.begin + begin * self.row_bytes
        return self.source.read(at, (end - begin) * self.row_bytes).reshape(-1, self.row_bytes)


@dataclass(frozen=True, slots=True)
class Expected:
    """A tensor that a graph reads."""

    name: str
    shape: tuple[int, ...]
    is_optional: bool = False


class Part:
    """One file, open for reading as long as a tensor refers to it."""

    def __init__(self, path: Path) -> None:
        """Raises BadModel when it is not a GGUF file, or not a whole one."""
        self.path = path
        self.header = scan(path)
        self._file = path.open("rb", buffering=0)
        self.data_begin = _aligned(self.header, path.name)

    def read(self, begin: int, num_bytes: int) -> U8:
        data, fd = np.empty(num_bytes, np.uint8), self._file.fileno()
        done = 0
        try:
            while done < num_bytes:
                count = os.preadv(fd, [data[done:].data], begin + done)
                if count == 0:
                    raise BadModel(f"{self.path.name} became shorter while it was read")
                done += count
        except OSError as error:
            raise BadModel(f"{self.path} cannot be read: {error.strerror}") from error
        if self.header.size > KEPT_IN_CACHE:
            os.posix_fadvise(fd, begin, num_bytes, os.POSIX_FADV_DONTNEED)
        return data

    def tensors(self) -> Iterator[GgufTensor]:
        """Its tensors; each is whole, and none overlaps another. Raises BadModel."""
        found = sorted((self._tensor(info) for info in self.header.tensors), key=lambda t: t.begin)
        end, before = 0, ""
        for tensor in found:
            if tensor.begin < end:
                raise BadModel(
                    f"{self.path.name} is damaged: tensor {tensor.name} overlaps {before}"
                )
            end, before = tensor.begin + tensor.num_bytes, tensor.name
        yield from found

    def _tensor(self, info: TensorInfo) -> GgufTensor:
        kind = TYPES.get(info.type)
        if kind is None:
            raise BadModel(f"tensor {info.name} has the unknown type {info.type}")
        if (cols := info.shape[-1]) % GGML_QUANT_SIZES[kind][0]:
            raise BadModel(
                f"tensor {info.name} has rows of {cols}, not whole blocks of {kind.name}"
            )
        tensor = GgufTensor(info.name, kind, info.shape, self, self.data_begin + info.offset)
        if tensor.begin + tensor.num_bytes > self.header.size:
            raise BadModel(
                f"{self.path.name} is truncated or damaged: its {self.header.size} bytes end in "
                f"tensor {info.name}"
            )
        return tensor


class GgufFile:
    """fields: metadata by key, as Python values; tensors: by name; parts: the files, in order."""

    fields: Mapping[str, Any]
    tensors: Mapping[str, GgufTensor]
    parts: Sequence[Path]

    def __init__(self, path: Path) -> None:
        """path   of the file, or of any part of a split one

        Raises BadModel when it is not a GGUF file, or not a whole one.
        """
        parts = _parts(path)
        self.fields = parts[0].header.fields
        self.parts = [part.path for part in parts]
        tensors: dict[str, GgufTensor] = {}
        for part in parts:
            for tensor in part.tensors():
                if tensor.name in tensors:
                    raise BadModel(f"{part.path.name} is damaged: tensor {tensor.name} again")
                tensors[tensor.name] = tensor
        self.tensors = tensors

    @classmethod
    def made(cls, fields: Mapping[str, Any], tensors: Iterable[GgufTensor]) -> "GgufFile":
        """What lies in no file."""
        file = cls.__new__(cls)
        file.fields, file.tensors, file.parts = fields, {t.name: t for t in tensors}, []
        return file

    @property
    def architecture(self) -> str:
        return str(self.fields.get("general.architecture", ""))

    def vocab_size(self) -> int:
        """Rows of the embedding. Raises BadModel when there is none."""
        table = self.tensors.get("token_embd.weight")
        if table is None or len(table.shape) != 2:
            raise BadModel("the file holds no tensor token_embd.weight")
        return table.shape[0]

    def matching(self, expected: Iterable[Expected]) -> list[GgufTensor]:
        """The expected tensors, by name. Raises BadModel for one that lacks, differs or is unknown.

        An unknown one would be left out of the computation, and the answers would be wrong.
        """
        known = {e.name: e for e in expected}
        for name, want in known.items():
            tensor = self.tensors.get(name)
            if tensor is None and not want.is_optional:
                raise BadModel(f"the file holds no tensor {name}")
            if tensor is not None and tensor.shape != want.shape:
                raise BadModel(f"tensor {name} has shape {tensor.shape}, not {want.shape}")
        for name in self.tensors:
            if name not in known:
                raise BadModel(f"tensor {name} is not known in architecture {self.architecture}")
        return [self.tensors[name] for name in sorted(known) if name in self.tensors]


def part_names(name: str) -> list[str] | None:
    """The names of all parts, in order, of what a split file's name promises; None for another."""
    match = SPLIT_NAME.fullmatch(name)
    if match is None or not 0 < int(match[3]) <= MAX_PARTS:
        return None
    return [f"{match[1]}-{no:05}-of-{match[3]}.gguf" for no in range(1, int(match[3]) + 1)]


def _parts(path: Path) -> list[Part]:
    """All files that belong to this one. Raises BadModel when one is missing or another's."""
    first = Part(path)
    count = first.header.fields.get(SPLIT_COUNT, 1)
    if count in (0, 1):
        return [first]
    names = part_names(path.name)
    if names is None or len(names) != count:
        raise BadModel(
            f"{path.name} is one of {count!r} parts, but its name does not end in "
            "-00001-of-0000N.gguf"
        )
    parts = [Part(path.with_name(name)) for name in names]
    for number, part in enumerate(parts):
        fields = part.header.fields
        if (fields.get(SPLIT_COUNT), fields.get(SPLIT_NO)) != (count, number):
            raise BadModel(f"{part.path.name} does not say that it is part {number + 1} of {count}")
    return parts


def _aligned(header: Header, name: str) -> int:
    """Where the data begins."""
    alignment = header.fields.get(ALIGNMENT, 32)
    if not isinstance(alignment, int) or alignment not in ALIGNMENTS:
        raise BadModel(f"{name} is damaged: {ALIGNMENT} is {alignment!r}")
    return -(-header.end // alignment) * alignment
