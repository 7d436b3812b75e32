"""How a weight matrix is packed: in tiles of 16 rows, so that one vector holds many rows.

LAYOUT.md has the picture; the kernels of kernels/cpu and kernels/cuda read these bytes.

    raw (GGUF)   row 0: block 0, block 1, ...        row 1: block 0, ...
    packed       tile 0: unit 0, unit 1, ...         tile 1: unit 0, ...
    one unit     [16 scales f16][16 minima f16, q4_1 only][word 0 of 16 rows][word 1 of 16 rows]...
    one word     4 bytes of one row: 8 nibbles (q4) or 4 values (q8)

Rows past the last one are zero, so that every tile is full. A changed picture needs a new
LAYOUT_VERSION: packs of another version are made again.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from kernels.ops import F32, QUANT_BLOCK, U8

LAYOUT_VERSION: Final = 1
TILE_ROWS: Final = (
    16  # rows interleaved in one unit: two AVX2 vectors, one AVX-512 vector, one mma tile
)


@dataclass(frozen=True, slots=True)
class BlockFormat:
    """The bytes of one 32-value block of one row.

    halves  float16 numbers in front: scale, and the minimum of q4_1
    quants  bytes of quantised values
    """

    halves: int
    quants: int

    @property
    def block_bytes(self) -> int:
        return 2 * self.halves + self.quants


FORMATS: Final = {
    "q4_0": BlockFormat(1, 16),
    "q4_1": BlockFormat(2, 16),
    "q8_0": BlockFormat(1, 32),
}
KINDS: Final = (*FORMATS, "f32")


def num_tiles(rows: int) -> int:
    """Tiles that hold so many rows, the last one padded."""
    return -(-rows // TILE_ROWS)


def packed_bytes(kind: str, rows: int, cols: int) -> int:
    """Bytes of a packed matrix, padding rows included."""
    assert kind in KINDS and rows > 0 and cols > 0, (kind, rows, cols)
    if kind == "f32":
        return num_tiles(rows) * TILE_ROWS * cols * 4
    assert cols % QUANT_BLOCK == 0, f"{cols} columns are no multiple of {QUANT_BLOCK}"
    return num_tiles(rows) * TILE_ROWS * (cols // QUANT_BLOCK) * FORMATS[kind].block_bytes


def pack_matrix(kind: str, raw: npt.NDArray[np.generic], rows: int, cols: int) -> U8:
    """The packed bytes of a matrix.

    raw   (rows, row_bytes) uint8, GGUF blocks; for kind "f32" (rows, cols) float32
    """
    if kind == "f32":
        assert raw.shape == (rows, cols) and raw.dtype == np.float32, (
            raw.shape,
            raw.dtype,
            rows,
            cols,
        )
        tiles = _padded(raw, rows).reshape(-1, TILE_ROWS, cols)
        return np.ascontiguousarray(tiles.transpose(0, 2, 1)).view(np.uint8).reshape(-1)
    form, num_blocks = FORMATS[kind], cols // QUANT_BLOCK
    assert cols % QUANT_BLOCK == 0, f"{cols} columns are no multiple of {QUANT_BLOCK}"
    expected = (rows, num_blocks * form.block_bytes)
    assert raw.shape == expected and raw.dtype == np.uint8, (kind, raw.shape, raw.dtype, expected)
    halves = _padded(raw, rows).view(np.uint16)  # all parts of a block are whole 16-bit words
    blocks = halves.reshape(-1, TILE_ROWS, num_blocks, form.block_bytes // 2)
    units = np.empty((num_tiles(rows), num_blocks, TILE_ROWS * form.block_bytes // 2), np.uint16)
    begin = TILE_ROWS * form.halves
    scales = blocks[..., : form.halves].transpose(0, 2, 3, 1)
    units[..., :begin] = scales.reshape(*units.shape[:2], -1)
    words = np.ascontiguousarray(blocks[..., form.halves :]).view(np.uint32).transpose(0, 2, 3, 1)
    units[..., begin:] = np.ascontiguousarray(words).view(np.uint16).reshape(*units.shape[:2], -1)
    return units.view(np.uint8).reshape(-1)


def unpack_matrix(kind: str, data: U8, rows: int, cols: int) -> npt.NDArray[np.generic]:
    """The inverse of pack_matrix.

    Gives (rows, row_bytes) uint8 GGUF blocks, or (rows, cols) float32 for kind "f32".
    """
    assert data.size == packed_bytes(kind, rows, cols), (kind, data.size, rows, cols)
    if kind == "f32":
        tiles = data.view(np.float32).reshape(-1, cols, TILE_ROWS)
        return np.ascontiguousarray(tiles.transpose(0, 2, 1)).reshape(-1, cols)[:rows]
    form, num_blocks = FORMATS[kind], cols // QUANT_BLOCK
    units = data.reshape(-1, num_blocks, TILE_ROWS * form.block_bytes)
    blocks = np.empty((units.shape[0], TILE_ROWS, num_blocks, form.block_bytes), np.uint8)
    for half in range(form.halves):
        begin = 2 * TILE_ROWS * half
        part = units[..., begin : begin + 2 * TILE_ROWS].reshape(-1, num_blocks, TILE_ROWS, 2)
        blocks[..., 2 * half : 2 * half + 2] = part.transpose(0, 2, 1, 3)
    words = units[..., 2 * TILE_ROWS * form.halves :]
    words = words.reshape(-1, num_blocks, form.quants // 4, TILE_ROWS, 4).transpose(0, 3, 1, 2, 4)
    blocks[..., 2 * form.halves :] = words.reshape(*blocks.shape[:3], form.quants)
    return blocks.reshape(-1, num_blocks * form.block_bytes)[:rows]


def dequantize_blocks(kind: str, raw: npt.NDArray[np.generic]) -> npt.NDArray[np.float64]:
    """Values of GGUF blocks, exact in float64.   raw as unpack_matrix gives it"""
    if kind == "f32":
        return raw.astype(np.float64)
    form = FORMATS[kind]
    blocks = raw.reshape(raw.shape[0], -1, form.block_bytes)
    halves = (
        np.ascontiguousarray(blocks[..., : 2 * form.halves]).view(np.float16).astype(np.float64)
    )
    quants = np.ascontiguousarray(blocks[..., 2 * form.halves :])
    if kind == "q8_0":
        values = quants.view(np.int8).astype(np.float64)
    else:
        values = np.concatenate([quants & 15, quants >> 4], axis=-1).astype(np.float64)
    scale = halves[..., :1]
    if kind == "q4_0":
        values -= 8
    weights = values * scale + (halves[..., 1:2] if kind == "q4_1" else 0.0)
    return weights.reshape(raw.shape[0], -1)


def dequantize_rows(matrix_kind: str, data: U8, rows: int, cols: int) -> F32:
    """All rows of a packed matrix as float32."""
    return dequantize_blocks(matrix_kind, unpack_matrix(matrix_kind, data, rows, cols)).astype(
        np.float32
    )


def _padded(raw: npt.NDArray[np.generic], rows: int) -> npt.NDArray[np.generic]:
    """raw with zero rows up to a full tile."""
    missing = num_tiles(rows) * TILE_ROWS - rows
    if missing == 0:
        return np.ascontiguousarray(raw)
    return np.concatenate([raw, np.zeros((missing, raw.shape[1]), raw.dtype)])
