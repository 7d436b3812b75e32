"""Weights of a true shape, made in packed form in seconds: for speed, never for sense.

A packed Q4_0 matrix is a row of units of 288 bytes, and any bytes are quants. So some thousand
units are drawn for each number of columns (their scales depend on it) and repeated, from another
one on for each matrix; vectors are those of `lockstep model synth`.
"""

from typing import Final

import numpy as np

from kernels.layout import FORMATS, TILE_ROWS, pack_matrix, packed_bytes
from kernels.ops import QUANT_BLOCK, U8
from workers.model.build import architecture_of
from workers.model.gguf_file import GgufTensor
from workers.model.pack import ALIGNMENT, Entry, Weights
from workers.model.synth import Like, made_like

UNIT_BYTES: Final = TILE_ROWS * FORMATS["q4_0"].block_bytes
DRAWN_UNITS: Final = (1 << 17) - 1  # 38 MB; odd, so that repeats do not fall on rows
DEVIATION: Final = 4.61  # of nibbles minus 8, all equally likely


def standin(like: Like, seed: int = 0) -> Weights:
    """A pack in memory, as if it had been opened."""
    file = made_like(like, "a stand-in", seed)
    entries, offset = [], 0
    for tensor in file.tensors.values():
        kind = "q4_0" if _is_quantised(tensor) else "f32"
        entries.append(_entry(tensor, kind, offset))
        offset += -(-entries[-1].num_bytes // ALIGNMENT) * ALIGNMENT
    data: U8 = np.empty(offset, np.uint8)
    units: dict[int, U8] = {}
    for index, entry in enumerate(entries):
        place = data[entry.offset : entry.offset + entry.num_bytes]
        if entry.kind == "f32":
            place[...] = _floats(file.tensors[entry.name])
            continue
        cols = entry.shape[1]
        if cols not in units:
            units[cols] = _units(cols, seed)
        _repeat(place, units[cols], 7919 * index % DRAWN_UNITS)
    config = architecture_of(like.architecture).config(file.fields, like.vocab_size)
    return Weights(config, {}, f"standin-{seed}".ljust(32, "0"), entries, data)


def _is_quantised(tensor: GgufTensor) -> bool:
    return len(tensor.shape) == 2 and tensor.shape[1] % QUANT_BLOCK == 0


def _entry(tensor: GgufTensor, kind: str, offset: int) -> Entry:
    shape = tensor.shape
    num_bytes = 4 * shape[0] if len(shape) == 1 else packed_bytes(kind, *shape)
    return Entry(tensor.name, kind, shape, offset, num_bytes)


def _floats(tensor: GgufTensor) -> U8:
    values = tensor.source.read(0, tensor.num_bytes)
    if len(tensor.shape) == 1:
        return values
    rows, cols = tensor.shape
    return pack_matrix("f32", values.view(np.float32).reshape(rows, cols), rows, cols)


def _units(cols: int, seed: int) -> U8:
    """(DRAWN_UNITS * UNIT_BYTES,): quants of any kind, scales for weights of 1 / sqrt(cols)."""
    random = np.random.Generator(np.random.SFC64([seed, cols]))
    raw = np.frombuffer(random.bytes(DRAWN_UNITS * UNIT_BYTES), np.uint8)
    units = raw.reshape(DRAWN_UNITS, UNIT_BYTES).copy()
    sizes = random.uniform(0.75, 1.25, (DRAWN_UNITS, TILE_ROWS)) / (DEVIATION * np.sqrt(cols))
    signs = random.choice([-1.0, 1.0], (DRAWN_UNITS, TILE_ROWS))
    units[:, : 2 * TILE_ROWS] = (sizes * signs).astype("<f2").view(np.uint8)
    return units.reshape(-1)


def matrix_bytes(cols: int, most_bytes: int) -> U8:
    """Whole units of a matrix with so many columns."""
    return _units(cols, 0)[: max(1, most_bytes // UNIT_BYTES) * UNIT_BYTES]


def _repeat(place: U8, units: U8, first: int) -> None:
    """Fill place with units, from number `first` on, over and over."""
    begin, at = 0, first * UNIT_BYTES
    while begin < place.size:
        count = min(place.size - begin, units.size - at)
        place[begin : begin + count] = units[at : at + count]
        begin, at = begin + count, 0
