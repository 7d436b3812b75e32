"""add, scale, silu_mul, gelu_mul, sigmoid_mul, exp and log: one value at a time."""

import numpy as np
import pytest

from tests.kernels.cases import close, random_rows, same_bits


def applied(op, x):
    out = np.full_like(x, np.nan)
    op(out, x)
    return out


def exp_inputs() -> np.ndarray:
    rng = np.random.default_rng(0)
    return np.concatenate([np.linspace(-87.3, 88.3, 40001), rng.normal(0, 1e-3, 999), [0, -0.0]])


def log_inputs() -> np.ndarray:
    rng = np.random.default_rng(0)
    near_one = 1 + rng.normal(0, 1e-3, 1001)
    return np.concatenate([np.exp(np.linspace(-103, 88, 40001)), near_one, [1e-45, 1.1754942e-38]])


@pytest.mark.parametrize(("name", "inputs"), [("exp", exp_inputs()), ("log", log_inputs())])
def test_exp_and_log_agree_with_judge_and_law(ops, judge, scalar, tolerance, name, inputs):
    x = inputs.astype(np.float32)
    actual = applied(getattr(ops, name), x)
    close(applied(getattr(judge, name), x), actual, tolerance[name])
    same_bits(applied(getattr(scalar, name), x), actual)


def test_exp_at_the_ends(ops, scalar):
    x = np.array([0, -0.0, -1e30, -np.inf, 1e30, np.inf, np.nan, -88, 89], np.float32)
    out = applied(ops.exp, x)
    same_bits(applied(scalar.exp, x), out)
    assert out[0] == out[1] == 1
    assert np.isfinite(out[[2, 3, 4, 5]]).all() and (out[:6] > 0).all() and np.isnan(out[6])


def test_exp_of_a_nan_with_payload_is_nan(ops):
    x = np.array([0x7F800001, 0xFFFFFFFF, 0x7FC001FF], np.uint32).view(np.float32)
    assert np.isnan(applied(ops.exp, x)).all()


def test_log_at_the_ends(ops):
    x = np.array([1, 0, np.inf, -1, np.nan, -np.inf], np.float32)
    out = applied(ops.log, x)
    assert out[:3].tolist() == [0, -np.inf, np.inf] and np.isnan(out[3:]).all()


GATES = ("silu_mul", "gelu_mul", "sigmoid_mul")


@pytest.mark.parametrize("name", GATES)
@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (5, 1536), (40, 1001)])
def test_gates_agree_with_judge_and_law(ops, judge, scalar, tolerance, name, shape):
    gate, up = random_rows(*shape), random_rows(*shape, seed=1)
    results = []
    for side in (judge, scalar, ops):
        out = np.full_like(gate, np.nan)
        getattr(side, name)(out, gate, up)
        results.append(out)
    close(results[0], results[2], tolerance[name])
    same_bits(results[1], results[2])


@pytest.mark.parametrize("name", GATES)
def test_gates_keep_nan_in_place_and_may_write_over_gate(ops, name):
    gate, up = random_rows(2, 40), random_rows(2, 40, seed=1)
    gate[1, 3] = np.nan
    out = np.empty_like(gate)
    getattr(ops, name)(out, gate, up)
    getattr(ops, name)(gate, gate, up)
    same_bits(out, gate)
    assert np.argwhere(np.isnan(out)).tolist() == [[1, 3]]


def test_sigmoid_mul_takes_a_gate_in_columns_of_wider_rows(ops):
    wide, up = random_rows(3, 80), random_rows(6, 24, seed=1)
    gate, out = wide.reshape(6, 40)[:, 16:], np.empty_like(up)
    ops.sigmoid_mul(out, gate, up)
    ops.sigmoid_mul(up, gate.copy(), up)
    same_bits(up, out)


def test_gelu_mul_is_right_in_its_tails(ops, judge):
    """tanh form: 1 + tanh of a negative number would have no digits left."""
    gate = np.linspace(-6, 6, 4001, dtype=np.float32)[None]
    outs = [np.empty_like(gate) for _ in range(2)]
    for side, out in zip((judge, ops), outs, strict=True):
        side.gelu_mul(out, gate, np.ones_like(gate))
    close(outs[0], outs[1], (2e-5, 1e-15))
    ends = np.array([[-1e30, -100, 100, 1e30]], np.float32)
    ops.gelu_mul(ends, ends.copy(), np.ones_like(ends))
    assert np.allclose(ends, [[0, 0, 100, 1e30]], atol=1e-7)


def test_scale_rounds_its_factor_once(ops):
    x = random_rows(3, 77)
    expected = x * np.float32(33.94112549695428)
    ops.scale(x, 33.94112549695428)
    same_bits(expected, x)


def test_add_adds_rows_and_biases(ops):
    x, y, bias = random_rows(3, 77), random_rows(3, 77, seed=1), random_rows(1, 77, seed=2)[0]
    with_rows, with_bias = x.copy(), x.copy()
    ops.add(with_rows, y)
    ops.add(with_bias, bias)
    same_bits(x + y, with_rows)
    same_bits(x + bias, with_bias)
