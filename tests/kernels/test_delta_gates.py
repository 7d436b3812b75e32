"""delta_gates: how much a linear layer forgets, and how much it takes in."""

import numpy as np
import pytest

from tests.kernels.cases import close, same_bits


def gates(ops, a, b, ssm_a, dt_bias):
    decay, beta = np.full_like(a, np.nan), np.full_like(a, np.nan)
    ops.delta_gates(decay, beta, a, b, ssm_a, dt_bias)
    return decay, beta


@pytest.mark.parametrize("shape", [(1, 1), (3, 6), (50, 48)])
def test_agrees_with_judge_and_law(ops, judge, scalar, tolerance, shape):
    rng = np.random.default_rng(shape[0])
    a, b = (rng.normal(0, 4, shape).astype(np.float32) for _ in range(2))
    ssm_a = -rng.uniform(0.01, 16, shape[1]).astype(np.float32)
    inputs = a, b, ssm_a, rng.normal(0, 3, shape[1]).astype(np.float32)
    for wanted, law, actual in zip(
        gates(judge, *inputs), gates(scalar, *inputs), gates(ops, *inputs), strict=True
    ):
        close(wanted, actual, tolerance["delta_gates"])
        same_bits(law, actual)


def test_softplus_keeps_its_digits_everywhere(ops):
    """Seen through decay = exp(-c softplus(x)) with c large enough to show softplus's digits."""
    x = np.linspace(-80, 60, 4001, dtype=np.float32)
    truth = np.logaddexp(0, x.astype(np.float64))
    c = np.exp2(-np.floor(np.log2(truth))).astype(np.float32)  # c * softplus(x) in [1, 2)
    a, none = np.broadcast_to(x, (1, x.size)).copy(), np.zeros(x.size, np.float32)
    decay, _ = gates(ops, a, np.zeros_like(a), -c, none)
    seen = -np.log(decay[0].astype(np.float64)) / c
    close(truth, seen, (6e-7, 0))


def test_ends(ops):
    x = np.array([[-1e30, 1e30, np.nan, 0]], np.float32)
    decay, beta = gates(ops, x, x, np.full(4, -1, np.float32), np.zeros(4, np.float32))
    assert decay[0, 0] == 1 and 0 < decay[0, 1] < 1e-37 and np.isnan(decay[0, 2])
    assert 0 < beta[0, 0] < 1e-37 and beta[0, 1] == 1 and np.isnan(beta[0, 2])
    assert beta[0, 3] == 0.5


def test_gates_may_be_written_over_their_inputs(ops):
    rng = np.random.default_rng(0)
    a, b = (rng.normal(0, 1, (3, 6)).astype(np.float32) for _ in range(2))
    ssm_a, bias = -np.ones(6, np.float32), np.zeros(6, np.float32)
    decay, beta = gates(ops, a, b, ssm_a, bias)
    ops.delta_gates(a, b, a, b, ssm_a, bias)
    same_bits(decay, a)
    same_bits(beta, b)
