"""l2_norm: each head of each token to a fixed length."""

import numpy as np
import pytest

from tests.kernels.cases import close, random_rows, same_bits

EPS, SCALE = 1e-6, 128**-0.5


@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 5, 72), (4, 2, 64), (9, 16, 128)])
def test_agrees_with_judge_and_law(ops, judge, scalar, tolerance, shape):
    x = random_rows(shape[0], shape[1] * shape[2]).reshape(shape)
    results = []
    for side in (judge, scalar, ops):
        out = np.full_like(x, np.nan)
        side.l2_norm(out, x, EPS, SCALE)
        results.append(out)
    close(results[0], results[2], tolerance["l2_norm"])
    same_bits(results[1], results[2])


def test_x_may_be_columns_of_wider_rows_and_out_may_be_x(ops):
    wide = random_rows(7, 500)
    part = wide[:, 100:356].reshape(7, 2, 128)
    out, x = np.empty((7, 2, 128), np.float32), part.copy()
    ops.l2_norm(out, part, EPS, SCALE)
    ops.l2_norm(x, x, EPS, SCALE)
    same_bits(out, x)


def test_a_head_of_zeros_stays_zero_and_a_nan_stays_in_its_head(ops):
    x = np.ones((2, 3, 32), np.float32)
    x[0, 1], x[1, 2, 5] = 0, np.nan
    out = np.empty_like(x)
    ops.l2_norm(out, x, EPS, 1.0)
    assert (out[0, 1] == 0).all() and np.isnan(out[1, 2]).all()
    assert np.isfinite(np.delete(out.reshape(6, 32), 5, axis=0)).all()


def test_rms_norm_takes_columns_of_wider_rows(ops):
    wide, weight = random_rows(6, 512), random_rows(1, 256)[0]
    heads = wide.reshape(12, 256)[:, :64]
    out, expected = np.empty((12, 64), np.float32), np.empty((12, 64), np.float32)
    ops.rms_norm(expected, heads.copy(), weight[:64].copy(), 1e-6)
    ops.rms_norm(out, heads, weight[:64].copy(), 1e-6)
    same_bits(expected, out)
