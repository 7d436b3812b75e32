"""logits_sum and logits_argmax: what is read off the logits."""

import numpy as np
import pytest

from tests.kernels.cases import random_rows, same_bits


def sums(ops, logits):
    out = np.zeros(logits.shape[0], np.uint64)
    ops.logits_sum(out, logits)
    return out


def argmax(ops, logits):
    out = np.full(logits.shape[0], -7, np.int32)
    ops.logits_argmax(out, logits)
    return out.tolist()


@pytest.mark.parametrize("shape", [(1, 1), (2, 9), (3, 4999), (5, 49152)])
def test_logits_agree_with_judge_and_law(ops, judge, scalar, shape):
    logits = random_rows(*shape)
    same_bits(sums(judge, logits), sums(ops, logits))
    same_bits(sums(scalar, logits), sums(ops, logits))
    assert argmax(judge, logits) == argmax(scalar, logits) == argmax(ops, logits)


def test_sum_notices_two_logits_that_change_places(ops):
    logits = random_rows(1, 100)
    before = sums(ops, logits)[0]
    logits[0, [40, 41]] = logits[0, [41, 40]]
    assert sums(ops, logits)[0] != before


def test_the_lowest_index_wins_among_equals(ops):
    logits = np.full((3, 50), -1, np.float32)
    logits[0, [17, 40]] = 3
    logits[1, [48, 49]] = 3
    assert argmax(ops, logits) == [17, 48, 0]


def test_zeros_of_both_signs_are_equal(ops):
    logits = np.array([[-1, -0.0, 0.0, -2]], np.float32)
    assert argmax(ops, logits) == [1]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("at", [0, 7, 64, 98, 99])
def test_a_row_that_is_not_finite_has_no_argmax(ops, bad, at):
    logits = random_rows(3, 100)
    expected = argmax(ops, logits)
    logits[1, at] = bad
    assert argmax(ops, logits) == [expected[0], -1, expected[2]]
