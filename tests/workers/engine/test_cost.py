"""The estimate finds the line of a machine, and the chunk that fits the budget."""

import pytest

from workers.engine.cost import FIRST_CHUNK, SMALLEST_CHUNK, StepCost


def learned(fixed_ms: int, per_token_ms: int, decodes=(4,), prefills=(100,)) -> StepCost:
    cost = StepCost()
    for n in decodes:
        cost.observe(n, 0, fixed_ms + per_token_ms * n)
    for n in prefills:
        cost.observe(0, n, fixed_ms + per_token_ms * n)
    return cost


def test_the_line_goes_through_decodes_and_prefills():
    assert learned(30, 2).line() == pytest.approx((30, 2))


def test_the_chunk_fills_the_budget():
    assert learned(30, 2).chunk(200, 4, 512) == (200 - 30 - 4 * 2) // 2


def test_the_chunk_is_at_most_what_is_left():
    assert learned(30, 2).chunk(200, 4, 17) == 17


def test_nothing_known_begins_small():
    assert StepCost().chunk(200, 0, 512) == FIRST_CHUNK


def test_a_step_slower_than_its_budget_still_prefills_half_of_itself():
    """27B on a few cores: reading the weights takes two seconds, whatever the step holds."""
    assert learned(2000, 20).chunk(200, 0, 512) == 1000 // 20


def test_a_very_slow_machine_still_moves():
    assert learned(0, 1000, decodes=()).chunk(200, 0, 512) == SMALLEST_CHUNK


def test_a_clock_too_coarse_to_see_a_step_limits_nothing():
    assert learned(0, 0).chunk(200, 4, 512) == 512


def test_the_estimate_follows_a_machine_that_slows_down():
    cost = learned(0, 1)
    for _ in range(30):
        cost.observe(0, 100, 400)
    assert cost.chunk(200, 0, 512) == pytest.approx(50, abs=2)


def test_many_decodes_do_not_forget_what_prefill_costs():
    cost = learned(30, 2, decodes=[4] * 10_000)
    assert cost.chunk(200, 4, 512) == 81


def test_noise_never_makes_the_line_fall():
    cost = StepCost()
    cost.observe(4, 0, 90)
    cost.observe(0, 100, 50)
    fixed_ms, per_token_ms = cost.line()
    assert fixed_ms >= 0 and per_token_ms >= 0
