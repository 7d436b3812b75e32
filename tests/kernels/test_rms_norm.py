"""rms_norm: each row over its root mean square, times a weight."""

import numpy as np
import pytest

from tests.kernels.cases import close, random_rows, same_bits

SHAPES = [(1, 1), (1, 8), (2, 31), (3, 33), (5, 576), (2, 579), (4, 4096)]


def normed(ops, x, eps=1e-5):
    weight = random_rows(1, x.shape[1], seed=9)[0]
    out = np.full_like(x, np.nan)
    ops.rms_norm(out, x, weight, eps)
    return out


@pytest.mark.parametrize("shape", SHAPES)
def test_rms_norm_agrees_with_the_judge(ops, judge, tolerance, shape):
    x = random_rows(*shape)
    close(normed(judge, x), normed(ops, x), tolerance["rms_norm"])


@pytest.mark.parametrize("shape", SHAPES)
def test_rms_norm_has_the_bits_of_the_law(ops, scalar, shape):
    x = random_rows(*shape)
    same_bits(normed(scalar, x), normed(ops, x))


def test_out_may_be_x(ops):
    x, weight = random_rows(3, 100), random_rows(1, 100, seed=9)[0]
    expected = normed(ops, x)
    ops.rms_norm(x, x, weight, 1e-5)
    same_bits(expected, x)


def test_a_nan_stays_in_its_row(ops):
    x = random_rows(3, 64)
    x[1, 5] = np.nan
    out = normed(ops, x)
    assert np.isnan(out).any(axis=1).tolist() == [False, True, False]
