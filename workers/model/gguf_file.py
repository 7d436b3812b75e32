"""A GGUF file, opened; and in one sentence what is wrong with it.

The file is mapped, not read: a tensor's bytes come in when they are used, so that a 15 GB file
costs no more memory than its largest tensor.
"""

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType, GGUFReader

from workers.model.config import BadModel
from workers.model.gguf_scan import scan

# what the reader raises for bytes that are not what they should be
DAMAGE = (ValueError, LookupError, OverflowError, TypeError, struct.error)
SPLIT_COUNT = "split.count"


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """One tensor as it lies in the file.

    shape  row-major: (values,) or (rows, cols)
    data   its bytes as the gguf package shows them: (rows, row_bytes) uint8 for blocks
    """

    name: str
    type: GGMLQuantizationType
    shape: tuple[int, ...]
    data: npt.NDArray[np.generic]


@dataclass(frozen=True, slots=True)
class Expected:
    """A tensor that a graph reads."""

    name: str
    shape: tuple[int, ...]
    is_optional: bool = False


class GgufFile:
    """fields: metadata by key, as Python values; tensors: by name."""

    fields: Mapping[str, Any]
    tensors: Mapping[str, GgufTensor]

    def __init__(self, path: Path) -> None:
        """Raises BadModel when it is not a GGUF file, or not a whole one."""
        self.path = path
        scan(path)
        try:
            reader = GGUFReader(path)
            self.fields = {key: field.contents() for key, field in reader.fields.items()}
            self.tensors = {t.name: _tensor(t) for t in reader.tensors}
        except DAMAGE as error:
            raise BadModel(f"{path.name} is truncated or damaged: {error}") from error
        if self.fields.get(SPLIT_COUNT, 1) > 1:
            raise BadModel(f"{path.name} is one of several parts: merge them with gguf-split first")

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


def _tensor(tensor: Any) -> GgufTensor:
    shape = tuple(int(size) for size in reversed(tensor.shape))
    return GgufTensor(tensor.name, tensor.tensor_type, shape, tensor.data)
