"""The estimate finds the numbers of a machine, keeps them where steps do not tell, and follows."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.workers.engine.fake import FakeClock, FakeModel, make_engine, make_request
from workers.cost import CostModel
from workers.engine.cost import UNPROVEN, StepCost, Work, learn

TRUE = CostModel(
    fixed_ms=20, decode_ms=3, prefill_ms=2, context_us=400, prefill_context_us=50, error=0.5
)


def time_of(work: Work, model: CostModel = TRUE) -> float:
    return model.step_ms(*work)


def works(seed: int, count: int) -> list[Work]:
    """Steps as an engine has them: some decodes, each with its context; often a chunk."""
    draw, made = random.Random(seed), []
    for _ in range(count):
        decodes = draw.randrange(1, 17)
        context = sum(draw.randrange(50, 3000) for _ in range(decodes))
        prefill = draw.choice([0, 0, 16, 64, 200])
        made.append(Work(decodes, context, prefill, draw.randrange(3000) if prefill else 0))
    return made


def observed(cost: StepCost, seen: list[Work], slower: float = 1.0) -> StepCost:
    for work in seen:
        cost.observe(slower * time_of(work), work)
    return cost


def mean_error(model: CostModel, seen: list[Work], slower: float = 1.0) -> float:
    """Relative to the truth."""
    errors = [abs(model.step_ms(*w) / (slower * time_of(w)) - 1) for w in seen]
    return sum(errors) / len(errors)


def test_every_number_of_the_machine_is_found():
    model = observed(StepCost(), works(1, 2000)).model()
    for name in ("fixed_ms", "decode_ms", "prefill_ms", "context_us", "prefill_context_us"):
        assert getattr(model, name) == pytest.approx(getattr(TRUE, name), rel=0.1), name
    assert (model.samples, model.error < 0.02) == (2000, True)


def test_noise_and_steps_that_took_ten_times_as_long_by_accident_are_lived_with():
    draw, cost = random.Random(2), StepCost()
    for work in works(2, 400):
        accident = 10 if draw.random() < 0.03 else 1
        cost.observe(time_of(work) * draw.lognormvariate(0, 0.1) * accident, work)
    assert mean_error(cost.model(), works(3, 200)) < 0.1
    assert 0.05 < cost.model().error < 0.3


def test_a_machine_that_becomes_four_times_slower_is_followed_within_a_few_steps():
    cost = observed(StepCost(), works(4, 300))
    observed(cost, works(5, 8), slower=4)
    assert mean_error(cost.model(), works(6, 100), slower=4) < 0.2
    observed(cost, works(7, 500), slower=4)
    assert mean_error(cost.model(), works(6, 100), slower=4) < 0.05


def test_a_start_that_is_wrong_by_ten_is_corrected():
    wrong = CostModel(fixed_ms=200, decode_ms=30, prefill_ms=20)
    cost = observed(StepCost(wrong), works(8, 60))
    assert mean_error(cost.model(), works(9, 100)) < 0.15


def test_many_decodes_do_not_forget_what_prefill_costs():
    cost = observed(StepCost(), works(10, 300))
    before = cost.model().prefill_ms
    observed(cost, [Work(4, 2000)] * 3000)
    assert cost.model().prefill_ms == pytest.approx(before, rel=0.1)


def test_what_steps_do_not_tell_apart_stays_where_it_was_measured():
    """A thousand steps of one decode each: the split of their time is the calibration's."""
    cost = observed(StepCost(TRUE), [Work(1, 500)] * 1000)
    assert cost.model().fixed_ms == pytest.approx(20, rel=0.05)
    assert cost.model().decode_ms == pytest.approx(3, rel=0.05)


def test_a_chunk_that_was_never_seen_is_thought_badly_of():
    """Else the first prompt would come in one step, however long that takes."""
    cost = observed(StepCost(), [Work(4, 400)] * 10)
    assert cost.model().step_ms(0, 0, 512) > 1000


def test_nothing_is_known_until_a_step_was_seen_or_measured():
    assert not StepCost().is_known and StepCost(TRUE).is_known
    assert observed(StepCost(), [Work(1)]).is_known


def test_what_is_no_matter_of_steps_is_handed_through():
    start = CostModel(fixed_ms=1.0, kv_bytes_per_token=7, state_bytes=8, read_bytes_per_s=9.0)
    model = observed(StepCost(start), works(11, 5)).model()
    assert (model.kv_bytes_per_token, model.state_bytes, model.read_bytes_per_s) == (7, 8, 9.0)


def test_a_grid_of_measured_steps_gives_the_numbers():
    grid = [Work(1, 10), Work(4, 40), Work(16, 160), Work(1, 2000), Work(0, 0, 128, 64)]
    grid += [Work(0, 0, 512, 256), Work(0, 0, 128, 2000)]
    model = learn([(time_of(work), work) for work in grid])
    assert mean_error(model, grid) < 0.05
    assert (model.samples, model.error) == (0, UNPROVEN)


def test_prefill_speed_is_that_of_the_last_steps():
    cost = StepCost()
    assert cost.prefill_tokens_per_s == 0.0
    cost.observe(100, Work(0, 0, 50))
    assert cost.prefill_tokens_per_s == 500
    for _ in range(50):
        cost.observe(100, Work(10, 0, 10))
    assert cost.prefill_tokens_per_s == pytest.approx(200, rel=0.01)


WORK = st.builds(
    Work, st.integers(0, 64), st.integers(0, 10**6), st.integers(0, 4096), st.floats(0, 10**5)
)


@given(st.lists(st.tuples(st.floats(0, 1e6), WORK), max_size=40))
def test_whatever_is_seen_no_number_is_negative_and_none_is_missing(seen):
    cost = StepCost()
    for ms, work in seen:
        cost.observe(ms, work)
        model = cost.model()
        for name in ("fixed_ms", "decode_ms", "prefill_ms", "context_us", "prefill_context_us"):
            assert 0 <= getattr(model, name) < 1e12, name
        assert 0 <= model.error < 1e12


def test_what_comes_between_steps_is_part_of_what_they_cost_and_idling_is_not():
    """A token waits for messages, for other threads, for whatever the process does meanwhile."""
    clock = FakeClock()
    engine = make_engine(clock, FakeModel(clock, fixed_ms=20))
    for number in range(3):
        engine.add(make_request(f"r{number}", max_tokens=40))
        while engine.has_work():
            engine.step()
            clock.now_ms += 5
        clock.now_ms += 3_600_000
    assert engine.load().cost.step_ms(1) == pytest.approx(25, rel=0.05)
    assert engine.load().step_ms == pytest.approx(20)
