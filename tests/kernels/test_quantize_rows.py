"""quantize_rows: activations to int8 by blocks of 32; all sides give the very same integers."""

import numpy as np
import pytest

from tests.kernels.cases import quantized, random_rows, same_bits


def assert_same(expected, actual):
    same_bits(expected.values, actual.values)
    same_bits(expected.scales, actual.scales)
    same_bits(expected.sums, actual.sums)


@pytest.mark.parametrize("size", [1e-28, 1e-3, 1.0, 1e30])
@pytest.mark.parametrize(("num_tokens", "cols"), [(1, 32), (3, 576), (40, 1536)])
def test_quantize_rows_equals_judge_and_law(ops, judge, scalar, num_tokens, cols, size):
    x = random_rows(num_tokens, cols) * np.float32(size)
    actual = quantized(ops, x)
    assert_same(quantized(judge, x), actual)
    assert_same(quantized(scalar, x), actual)


def test_sums_are_the_sums_of_the_values(ops):
    out = quantized(ops, random_rows(5, 96))
    assert (out.values.reshape(5, 3, 32).sum(axis=-1, dtype=np.int32) == out.sums).all()


def test_values_come_back_within_half_a_scale(ops):
    x = random_rows(5, 96)
    out = quantized(ops, x)
    back = out.values.reshape(5, 3, 32) * out.scales[..., None]
    error = np.abs(back - x.reshape(5, 3, 32))
    assert (error <= 0.5001 * out.scales[..., None]).all()


def test_halves_round_to_even(ops):
    x = np.zeros((1, 32), np.float32)
    x[0, :5] = [127, 0.5, 1.5, 2.5, -2.5]
    assert quantized(ops, x).values[0, :5].tolist() == [127, 0, 2, 2, -2]


@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf, -np.inf])
def test_a_block_that_is_not_finite_gets_a_nan_scale_and_zeros(ops, bad):
    x = random_rows(3, 96)
    x[1, 40] = bad
    out = quantized(ops, x)
    assert np.argwhere(np.isnan(out.scales)).tolist() == [[1, 1]]
    assert not out.values[1, 32:64].any() and out.sums[1, 1] == 0


def test_zeros_and_tiny_blocks_have_scale_zero(ops):
    x = np.zeros((1, 96), np.float32)
    x[0, 40], x[0, 70] = 2.0**-101, 1e-44
    out = quantized(ops, x)
    assert out.scales.tolist() == [[0, 0, 0]] and not out.values.any()


def test_the_smallest_block_that_counts_is_exact(ops):
    x = np.full((1, 32), -(2.0**-100), np.float32)
    assert (quantized(ops, x).values == -127).all()
