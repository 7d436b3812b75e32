"""Cuts and draws against a judge that sorts and adds everything, element by element."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from workers.engine.shares import LANES, descending, lane_sums, pick, top_k, top_p, total_of

SCORES = arrays.arrays(
    np.float32,
    st.integers(1, 60) | st.integers(200, 900),
    elements=st.floats(-30, 0, width=32) | st.sampled_from([0.0, -0.0, -1.0, -2.0, -np.inf]),
)
SHARE = st.floats(0, 1, exclude_max=True)


def weights_of(scores: np.ndarray) -> np.ndarray:
    return np.exp(scores.astype(np.float64)).astype(np.float32)


def by_score(scores: np.ndarray) -> list[int]:
    return sorted(range(len(scores)), key=lambda i: (-scores[i], i))


@given(SCORES)
def test_descending_is_by_score_then_id(scores):
    assert descending(scores, np.arange(len(scores))).tolist() == by_score(scores)


@given(SCORES, st.integers(1, 900))
def test_top_k_is_what_sorting_everything_gives(scores, k):
    k = min(k, len(scores))
    assert top_k(scores, k).tolist() == sorted(by_score(scores)[:k])


@given(SCORES, SHARE)
def test_top_p_is_what_sorting_everything_gives(scores, p):
    scores[0] = 0
    weights = weights_of(scores)
    mass, reached, kept = p * total_of(weights), 0.0, []
    for index in by_score(scores):
        kept.append(index)
        reached += float(weights[index])
        if reached >= mass:
            break
    assert top_p(scores, weights, p).tolist() == sorted(kept)


@given(SCORES)
def test_lanes_are_added_in_the_written_order(scores):
    """The judge folds lists of Python floats."""
    weights = weights_of(scores)
    rows = [list(map(float, weights[i : i + LANES])) for i in range(0, len(weights), LANES)]
    rows[-1] += [0.0] * (LANES - len(rows[-1]))
    while len(rows) > 1:
        half = (len(rows) + 1) // 2
        for r in range(len(rows) - half):
            rows[r] = [a + b for a, b in zip(rows[r], rows[half + r], strict=True)]
        rows = rows[:half]
    assert lane_sums(weights).tolist() == rows[0]


@given(SCORES, SHARE | st.just(1 - 2.0**-53))
def test_a_draw_never_falls_on_nothing(scores, number):
    scores[-1] = 0
    weights = weights_of(scores)
    index = pick(weights, number)
    assert 0 <= index < len(weights)
    assert weights[index] > 0


@pytest.mark.parametrize("size", [1, 3, 255, 256, 257, 1000])
def test_evenly_spaced_numbers_fall_in_proportion(size):
    weights = np.random.default_rng(size).random(size).astype(np.float32)
    counts = np.bincount([pick(weights, (i + 0.5) / 20_000) for i in range(20_000)], minlength=size)
    expected = 20_000 * weights / total_of(weights)
    assert np.abs(counts - expected).max() <= 1 + 1e-3


def test_equal_weights_are_drawn_lane_after_lane():
    drawn = [pick(np.ones(512, np.float32), (i + 0.5) / 512) for i in range(4)]
    assert drawn == [0, 256, 1, 257]
