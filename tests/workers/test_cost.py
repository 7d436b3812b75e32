"""The cost model is plain sums: each term, and what is not known."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.cost import CostModel

MODEL = CostModel(
    fixed_ms=100.0,
    decode_ms=10.0,
    prefill_ms=2.0,
    context_us=500.0,
    prefill_context_us=100.0,
    kv_bytes_per_token=1000,
    state_bytes=500_000,
    write_bytes_per_s=1e6,
    read_bytes_per_s=4e6,
)


@pytest.mark.parametrize(
    ("step", "ms"),
    [
        ((0,), 100.0),
        ((3,), 130.0),
        ((3, 2_000_000), 1130.0),
        ((0, 0, 50), 200.0),
        ((0, 0, 50, 10_000), 250.0),
    ],
)
def test_a_step_is_the_sum_of_its_parts(step, ms):
    assert MODEL.step_ms(*step) == pytest.approx(ms)


def test_a_prompt_pays_for_every_step_and_for_what_lies_before_its_tokens():
    assert MODEL.prefill_ms_of(100, 0, 100) == pytest.approx(100 + 100 * (2 + 0.005))
    assert MODEL.prefill_ms_of(100, 0, 10) == pytest.approx(10 * 100 + 100 * (2 + 0.005))
    assert MODEL.prefill_ms_of(0) == 0.0


def test_moving_is_writing_here_and_reading_there():
    assert MODEL.write_ms(500) == pytest.approx(1000)
    assert MODEL.restore_ms(500) == pytest.approx(250)
    assert MODEL.move_ms(500) == pytest.approx(1250)


def test_a_speed_that_is_not_known_decides_nothing():
    assert CostModel(fixed_ms=1.0, kv_bytes_per_token=1000).move_ms(10**6) == 0.0


@given(st.floats(0, 1e5), st.integers(0, 10**5), st.integers(1, 4096))
def test_a_chunk_fits_its_room_and_one_token_more_does_not(room, before, most):
    chunk = MODEL.tokens_within(room, before, most)
    assert 0 <= chunk <= most
    assert chunk * MODEL.token_ms(before) <= room + 1e-6
    if chunk < most:
        assert (chunk + 1) * MODEL.token_ms(before) > room - 1e-6


def test_a_model_in_which_prompts_cost_nothing_divides_by_nothing():
    free = CostModel(fixed_ms=50.0)
    assert free.tokens_within(10, 0, 512) == 512
    assert free.tokens_within(-1, 0, 512) == 512


@given(st.floats(0, 1e4), st.floats(1, 1e4), st.floats(1, 1e4))
def test_prefill_keeps_a_pace_that_can_be_kept_and_is_never_left_out(base, promise, budget):
    safe = MODEL.safe_ms(promise)
    room = MODEL.prefill_room_ms(base, safe, budget)
    assert room > 0 or base == 0
    if base < safe:
        assert base + room <= safe + 1e-6
    assert base + room <= max(budget, 1.5 * base) + 1e-6
