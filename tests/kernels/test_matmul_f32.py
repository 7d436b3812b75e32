"""matmul_f32: float activations times a packed f32 matrix of any width."""

import pytest

from tests.kernels.cases import close, product, random_matrix, random_rows, same_bits

SHAPES = [(1, 1, 1), (1, 16, 256), (3, 17, 257), (4, 40, 100), (9, 33, 600)]


@pytest.mark.parametrize(("num_tokens", "rows", "cols"), SHAPES)
def test_matmul_f32_agrees_with_the_judge(ops, judge, tolerance, num_tokens, rows, cols):
    w, x = random_matrix("f32", rows, cols), random_rows(num_tokens, cols)
    close(product(judge, x, w), product(ops, x, w), tolerance["matmul_f32"])


@pytest.mark.parametrize(("num_tokens", "rows", "cols"), SHAPES)
def test_matmul_f32_has_the_bits_of_the_law(ops, scalar, num_tokens, rows, cols):
    w, x = random_matrix("f32", rows, cols), random_rows(num_tokens, cols)
    same_bits(product(scalar, x, w), product(ops, x, w))
