"""matmul: quantised activations times packed q4_0, q4_1 and q8_0 weights."""

import numpy as np
import pytest

from tests.kernels.cases import QUANTISED, close, product, random_matrix, random_rows, same_bits

SHAPES = [  # tokens, rows, columns: cut tiles, cut stripes, every column count of the kernels
    (1, 1, 32), (1, 16, 256), (2, 17, 288), (3, 576, 576), (4, 5, 1536), (5, 33, 64), (6, 16, 96),
    (7, 48, 512), (8, 77, 544), (13, 31, 4096), (16, 64, 320), (70, 35, 288),
]  # fmt: skip


@pytest.mark.parametrize("kind", QUANTISED)
@pytest.mark.parametrize(("num_tokens", "rows", "cols"), SHAPES)
def test_matmul_agrees_with_the_judge(ops, judge, tolerance, kind, num_tokens, rows, cols):
    w, x = random_matrix(kind, rows, cols), random_rows(num_tokens, cols)
    close(product(judge, x, w), product(ops, x, w), tolerance["matmul"])


@pytest.mark.parametrize("kind", QUANTISED)
@pytest.mark.parametrize(("num_tokens", "rows", "cols"), SHAPES)
def test_matmul_has_the_bits_of_the_law(ops, scalar, kind, num_tokens, rows, cols):
    w, x = random_matrix(kind, rows, cols, seed=1), random_rows(num_tokens, cols, seed=1)
    same_bits(product(scalar, x, w), product(ops, x, w))


@pytest.mark.parametrize("kind", QUANTISED)
def test_extreme_products_do_not_overflow(ops, scalar, kind):
    """All quants at their ends, all activations at +-127: the 16-bit sums are full."""
    w = random_matrix(kind, 16, 64)
    header = 64 if kind == "q4_1" else 32
    for fill, sign in ((0xFF, 1), (0xFF, -1), (0x00, 1), (0x80, -1), (0x7F, 1)):
        w.data.reshape(2, -1)[:, header:] = fill
        x = np.full((4, 64), sign * 3.0, np.float32)
        same_bits(product(scalar, x, w), product(ops, x, w))


@pytest.mark.parametrize("kind", QUANTISED)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_spoils_its_own_row_only(ops, kind, bad):
    w, x = random_matrix(kind, 40, 320), random_rows(6, 320)
    clean = product(ops, x, w)
    x[2, 300] = bad
    spoiled = product(ops, x, w)
    assert np.isnan(spoiled[2]).all()
    others = [0, 1, 3, 4, 5]
    same_bits(clean[others], spoiled[others])
