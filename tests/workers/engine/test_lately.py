"""Rates of what came lately: true once they are seen for a while, and soon forgotten."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.engine.lately import LATELY_MS, Rate

SECONDS = 1000.0


def looks(rate, per_second, begin_s, seconds):
    """The last look, one each second, at a count that grows so fast."""
    told = {}
    for second in range(begin_s, begin_s + seconds + 1):
        told = rate.look({"batch": per_second * (second - begin_s)}, second * SECONDS)
    return told["batch"]


@given(st.integers(0, 10_000))
def test_a_steady_rate_is_told_as_it_is(per_second):
    assert looks(Rate(), per_second, 0, 30) == pytest.approx(per_second, abs=0.01)


def test_a_short_burst_is_no_rate_yet():
    assert looks(Rate(), 1000, 0, 1) < 200


def test_what_has_ended_is_forgotten():
    rate = Rate()
    looks(rate, 100, 0, 120)
    quiet = rate.look({"batch": 12_000}, 120 * SECONDS + 3 * LATELY_MS)
    assert quiet["batch"] < 6


def test_two_looks_at_the_same_moment_are_one():
    rate = Rate()
    looks(rate, 100, 0, 60)
    assert rate.look({"batch": 6000}, 60 * SECONDS) == rate.look({"batch": 6000}, 60 * SECONDS)
