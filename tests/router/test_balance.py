"""What passes those who wait, and how many decode at once: by what came lately."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from router.balance import PASSING_MOST, balanced, passing
from router.forecast import forecast
from tests.router.node_pictures import TABLE, gpu, wanted

rates = st.dictionaries(st.sampled_from(TABLE.names), st.floats(0, 5000))


@given(rates, rates, st.integers(0, 40))
def test_nothing_passes_the_most_urgent_and_nobody_waits_for_ever(prompts, outputs, running):
    pool = gpu(running, prompts_per_s=prompts, outputs_per_s=outputs)
    parts = [passing(wanted(sla=sla), pool, TABLE) for sla in TABLE.names]
    assert parts[0] == 0.0
    assert all(more >= less - 1e-6 for less, more in pairwise(parts)), parts  # balanced's own doubt
    assert parts[-1] <= PASSING_MOST


@given(rates, rates, st.integers(0, 40), st.integers(0, 400))
def test_as_many_decode_as_there_are_and_one_at_least(prompts, outputs, running, budget):
    pool = gpu(running, prompts_per_s=prompts, outputs_per_s=outputs, budget_ms=budget)
    assert 1 <= balanced(wanted(), pool, TABLE) <= max(1, min(running, pool.places))


def test_long_prompts_leave_places_without_a_decode():
    """A step of 90 ms has no room for 32 decodes and for what their requests bring along."""
    outputs = {"standard": 200.0}
    chats = gpu(32, sla="realtime", prompts_per_s={"standard": 100.0}, outputs_per_s=outputs)
    documents = gpu(32, sla="realtime", prompts_per_s={"standard": 2000.0}, outputs_per_s=outputs)
    assert balanced(wanted(), chats, TABLE) > 30
    assert balanced(wanted(), documents, TABLE) < 15


def test_who_waits_while_half_goes_to_more_urgent_ones_waits_twice_as_long():
    full = {"running": 32, "sla": "standard"}
    waiting = tuple(wanted(f"w{n}") for n in range(20))
    alone = gpu(**full, queue=waiting)
    passed = gpu(
        **full, queue=waiting, prompts_per_s={"realtime": 200.0}, outputs_per_s={"realtime": 200.0}
    )
    share = passing(wanted(), passed, TABLE)
    assert 0.2 < share < 0.8
    longer = forecast(wanted(), passed, TABLE).wait_ms / forecast(wanted(), alone, TABLE).wait_ms
    assert 0.8 / (1 - share) < longer < 1.3 / (1 - share)


def test_without_rates_nothing_passes():
    assert passing(wanted(sla="batch"), gpu(8), TABLE) == 0.0
