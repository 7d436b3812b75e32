"""One GGUF tensor into a kind that the kernels know.

    Q4_0, Q4_1, Q8_0  stay what they are, byte for byte
    Q4_K              becomes q4_1: the same 4-bit values, scale and minimum rounded to float16
    any other matrix  becomes q8_0
    rows that are no multiple of 32, and all vectors (norms, biases)   become f32

A matrix is converted some rows at a time, so that no large one ever lies in memory as a whole.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType as Type
from gguf import quants

from kernels.layout import FORMATS, TILE_ROWS
from kernels.ops import QUANT_BLOCK, U8
from workers.model.config import BadModel
from workers.model.gguf_file import GgufTensor

Array = npt.NDArray[np.generic]

KEPT: Final = {Type.Q4_0: "q4_0", Type.Q4_1: "q4_1", Type.Q8_0: "q8_0"}
CHUNK_VALUES: Final = 1 << 20  # weights converted at once, about
DIVISORS: Final = ("rope_freqs.weight",)  # tensors that something is divided by
SMALLEST_DIVISOR: Final = 1e-30
GGUF_TYPE: Final = {kind: kept for kept, kind in KEPT.items()}


@dataclass(frozen=True, slots=True)
class Piece:
    """Some rows of a tensor as the pack will hold them, not yet in the kernels' order.

    raw      (rows, row_bytes) uint8 blocks; or (rows, cols) float32 for kind "f32"
    change   sum of squares of what the conversion changed
    weights  sum of squares of the weights, where anything changed
    """

    raw: Array
    change: float = 0.0
    weights: float = 0.0


def kind_of(tensor: GgufTensor) -> str:
    """Which kind the tensor becomes."""
    if len(tensor.shape) == 1 or tensor.shape[1] % QUANT_BLOCK:
        return "f32"
    if tensor.type == Type.Q4_K:
        return "q4_1"
    return KEPT.get(tensor.type, "q8_0")


def piece_rows(tensor: GgufTensor) -> int:
    """Rows of its pieces, but of the last: whole tiles, of about CHUNK_VALUES weights."""
    return max(1, CHUNK_VALUES // (tensor.shape[-1] * TILE_ROWS)) * TILE_ROWS


def convert(tensor: GgufTensor, begin: int, end: int) -> Piece:
    """The rows at [begin, end) of a matrix, or a vector as its one row.

    Raises BadModel when the type cannot be read, a value is not finite, or a divisor not above 0.
    """
    kind = kind_of(tensor)
    with np.errstate(all="ignore"):  # what is not finite is named below
        piece = _converted(tensor, kind, tensor.rows(begin, end))
    if not _is_finite(kind, piece.raw):
        raise BadModel(f"tensor {tensor.name} holds values that are not finite")
    if tensor.name in DIVISORS and piece.raw.astype(np.float32).min() < SMALLEST_DIVISOR:
        raise BadModel(f"tensor {tensor.name} divides, so its values must be above 0")
    return piece


def _converted(tensor: GgufTensor, kind: str, data: U8) -> Piece:
    if KEPT.get(tensor.type) == kind:
        return Piece(data)
    before = _dequantized(tensor, data)
    if kind == "f32":
        return Piece(np.ascontiguousarray(before, np.float32))
    if tensor.type == Type.Q4_K:
        raw = q4_k_as_q4_1(data)
    else:
        raw = quants.quantize(before, GGUF_TYPE[kind])
    after = quants.dequantize(raw, GGUF_TYPE[kind])
    change = np.square(after - before, dtype=np.float64).sum()
    return Piece(raw, float(change), float(np.square(before, dtype=np.float64).sum()))


def _dequantized(tensor: GgufTensor, data: U8) -> npt.NDArray[np.float32]:
    try:
        values: npt.NDArray[np.float32] = quants.dequantize(data, tensor.type)
        return values
    except NotImplementedError as error:
        raise BadModel(f"tensor {tensor.name} has type {tensor.type.name}, unknown here") from error


def q4_k_as_q4_1(blocks: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """The same 4-bit values with one scale and minimum per 32.

    blocks  (rows, 144 bytes per 256 weights): scale f16, scale of minima f16, 12 bytes of 6-bit
            scales and minima, 4 x 32 bytes: a byte has one value of an even and of an odd block
    """
    rows = blocks.shape[0]
    super_blocks = blocks.reshape(-1, 144)
    halves = np.ascontiguousarray(super_blocks[:, :4]).view(np.float16).astype(np.float32)
    scales, minima = quants.Q4_K.get_scale_min(super_blocks[:, 4:16])
    pair = np.stack([halves[:, :1] * scales, -(halves[:, 1:] * minima)], axis=-1)
    pair = pair.astype(np.float16).view(np.uint8)  # (super blocks, 8, 4)
    nibbles = super_blocks[:, 16:].reshape(-1, 4, 1, 32) >> np.array([[0], [4]], np.uint8) & 15
    values = nibbles.reshape(-1, 8, 32)
    packed = values[..., :16] | values[..., 16:] << 4
    return np.concatenate([pair, packed], axis=-1).reshape(rows, -1)


def _is_finite(kind: str, raw: Array) -> bool:
    """Whether all floats of the blocks, or of a float tensor, are finite."""
    if kind == "f32":
        return bool(np.isfinite(raw.astype(np.float32, copy=False)).all())
    form = FORMATS[kind]
    halves = raw.reshape(-1, form.block_bytes)[:, : 2 * form.halves]
    return bool(np.isfinite(np.ascontiguousarray(halves).view(np.float16)).all())
