"""cos and sin of RoPE by position, the same bits on every machine.

A libm or NumPy sine differs between machines by an ulp; a table made of it would break law one.
Here nothing is used but integers, decimal arithmetic (integers again, correctly rounded by its
specification) and float64 + and *, which IEEE fixes; NumPy never fuses two of its calls.

    turns[i] = theta^(-2i / rotated) / factor[i] / 2 pi   turns per position, to 64 binary places
    phase    = position * turns[i] mod 1                  exact: a wrapping 64-bit product
    phase    = quadrant / 4 + rest, rest in [-1/8, 1/8)   exact: bits of the integer
    sin, cos = Taylor polynomials of 2 pi rest, Horner in float64, then turned by the quadrant
               and rounded to float32

At position 2^18 the phase is off by less than 2^-46 of a turn, so the float32 is correctly
rounded but for near-ties.
"""

from decimal import Context, Decimal
from typing import Final

import numpy as np
import numpy.typing as npt

from kernels.arrays import HOST, Arrays
from kernels.ops import F32, RopeTable

F64 = npt.NDArray[np.float64]
U64 = npt.NDArray[np.uint64]

TWO_PI_DIGITS: Final = Decimal("6.28318530717958647692528676655900576839433879875021164194989")
TWO_PI: Final = 6.283185307179586
SIN: Final = (  # (-1)^k / (2k + 1)!
    -7.647163731819816e-13, 1.6059043836821613e-10, -2.505210838544172e-08, 2.7557319223985893e-06,
    -0.0001984126984126984, 0.008333333333333333, -0.16666666666666666, 1.0,
)  # fmt: skip
COS: Final = (  # (-1)^k / (2k)!
    4.779477332387385e-14, -1.1470745597729725e-11, 2.08767569878681e-09, -2.755731922398589e-07,
    2.48015873015873e-05, -0.001388888888888889, 0.041666666666666664, -0.5, 1.0,
)  # fmt: skip
CHUNK_POSITIONS: Final = 4096  # rows worked on at once, so that a long table needs little memory


def rope_table(
    theta: float, rotated: int, max_positions: int, factors: F32 | None, adjacent: bool
) -> RopeTable:
    """The table of one model.

    theta     base of the frequencies, e.g. 10000
    rotated   dimensions that turn, even; the table has rotated / 2 columns
    factors   (rotated / 2,) float32 that divide the frequencies (rope_freqs.weight), or None
    """
    assert theta > 1 and rotated > 0 and rotated % 2 == 0, (theta, rotated)
    assert factors is None or factors.shape == (rotated // 2,), (factors, rotated)
    turns = turns_per_position(theta, rotated, factors)
    return RopeTable(*_rows(turns, 0, max_positions), adjacent)


class GrowingRope:
    """rope_table, of which only the beginning that was asked for is there: a context may be long.

    Rows that are there stay as they are, so that a table given out keeps its bits.
    """

    def __init__(
        self,
        theta: float,
        rotated: int,
        max_positions: int,
        factors: F32 | None,
        adjacent: bool,
        arrays: Arrays = HOST,
    ) -> None:
        assert theta > 1 and rotated > 0 and rotated % 2 == 0, (theta, rotated)
        self._turns = turns_per_position(theta, rotated, factors)
        shape = (max_positions, rotated // 2)
        cos, sin = (arrays.reserve(shape, np.float32) for _ in "cs")
        self._arrays, self._whole = arrays, RopeTable(cos, sin, adjacent)
        self._table = self._first(0)

    def covering(self, num_positions: int) -> RopeTable:
        """A table of at least so many positions, of the model's context at most."""
        whole, size = self._whole, len(self._table.cos)
        if num_positions > size and size < len(whole.cos):
            end = min(len(whole.cos), max(num_positions, 2 * size, CHUNK_POSITIONS))
            cos, sin = _rows(self._turns, size, end)
            self._arrays.write(whole.cos[size:end], cos)
            self._arrays.write(whole.sin[size:end], sin)
            self._table = self._first(end)
        return self._table

    def _first(self, num_positions: int) -> RopeTable:
        whole = self._whole
        return RopeTable(whole.cos[:num_positions], whole.sin[:num_positions], whole.adjacent)


def _rows(turns: U64, first: int, last: int) -> tuple[F32, F32]:
    """cos and sin of the positions [first, last)."""
    cos = np.empty((last - first, turns.size), np.float32)
    sin = np.empty_like(cos)
    for begin in range(first, last, CHUNK_POSITIONS):
        end = min(begin + CHUNK_POSITIONS, last)
        positions = np.arange(begin, end, dtype=np.uint64)
        rows = slice(begin - first, end - first)
        cos[rows], sin[rows] = cos_sin(positions[:, None] * turns[None, :])
    return cos, sin


def turns_per_position(theta: float, rotated: int, factors: F32 | None) -> U64:
    """(rotated / 2,) uint64: turns per position times 2^64, modulo one turn."""
    exact = Context(prec=60)
    log_theta = exact.ln(Decimal(theta))
    turns = np.empty(rotated // 2, np.uint64)
    for i in range(rotated // 2):
        exponent = exact.divide(exact.multiply(log_theta, Decimal(-2 * i)), Decimal(rotated))
        turn = exact.divide(exact.exp(exponent), TWO_PI_DIGITS)
        if factors is not None:
            turn = exact.divide(turn, Decimal(float(factors[i])))
        scaled = exact.to_integral_value(exact.multiply(turn, Decimal(2**64)))
        turns[i] = int(scaled) % 2**64
    return turns


def cos_sin(phase: U64) -> tuple[F32, F32]:
    """cos and sin of phase / 2^64 turns."""
    eighth, quarter_bits = np.uint64(1 << 61), np.uint64(62)
    quadrant = (phase + eighth) >> quarter_bits
    rest = (phase - (quadrant << quarter_bits)).view(np.int64)
    angle = rest.astype(np.float64) * 2.0**-64 * TWO_PI
    square = angle * angle
    sine, cosine = _horner(SIN, square) * angle, _horner(COS, square)
    swapped = (quadrant & np.uint64(1)).astype(bool)
    flip_sin = (quadrant >> np.uint64(1)).astype(bool)
    flip_cos = swapped ^ flip_sin
    cos = np.where(swapped, sine, cosine)
    sin = np.where(swapped, cosine, sine)
    cos = np.where(flip_cos, -cos, cos).astype(np.float32)
    return cos, np.where(flip_sin, -sin, sin).astype(np.float32)


def _horner(coefficients: tuple[float, ...], x: F64) -> F64:
    """The polynomial, highest power first; product and sum are rounded apart."""
    total = np.full_like(x, coefficients[0])
    for coefficient in coefficients[1:]:
        total = total * x + coefficient
    return total
