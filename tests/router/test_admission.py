"""The door refuses what would wait longer than was promised, and says truly when it would not."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace as with_fields

from router.admission import idle_forecast, late_ms, refusal
from router.forecast import Forecast
from router.placement import place
from router.pools import PoolView, Wanted
from router.ways import Way
from workers.cost import CostModel
from workers.sla import SlaClass, SlaTable

COST = CostModel(fixed_ms=10, decode_ms=1, prefill_ms=1)
POOL = PoolView(name="cpu", model="m", cost=COST, places=4, total_blocks=64, sequence_blocks=64)
TABLE = SlaTable(
    (
        SlaClass(name="fast", ttft_ms=1000, tpot_ms=50),
        SlaClass(name="slow", handicap_ms=1000, deadline_ms=60_000),
        SlaClass(name="free", handicap_ms=2000),
    )
)


def way(pool=POOL, **told):
    fields = {"wait_ms": 0.0, "ttft_ms": 100.0, "tpot_ms": 11.0, "end_ms": 1000.0} | told
    return Way(pool, None, Forecast(**fields), 0.0, True)


def wanted(sla="fast", prompt=100, arrival_ms=0, **changes):
    fields = {"request_id": "r", "prompt_tokens": prompt, "max_tokens": 20}
    return Wanted(sla=sla, arrival_ms=arrival_ms, **(fields | changes))


@pytest.mark.parametrize(
    ("asked", "told", "now_ms", "expected"),
    [
        (wanted(), {"ttft_ms": 1000.0}, 0, None),
        (wanted(), {"ttft_ms": 1500.0}, 0, 500.0),
        (wanted(), {"ttft_ms": 900.0}, 300, 200.0),
        (wanted(), {"tpot_ms": 61.0}, 0, 220.0),
        (wanted("slow"), {"ttft_ms": 9e4, "end_ms": 50_000.0}, 0, None),
        (wanted("slow"), {"end_ms": 61_000.0}, 0, 1000.0),
        (wanted("free"), {"ttft_ms": 1e9, "tpot_ms": 1e9, "end_ms": 1e9}, 0, None),
        (wanted("free", deadline_ms=5000), {"end_ms": 6000.0}, 0, 1000.0),
    ],
)
def test_it_is_taken_while_the_prediction_is_within_the_promise(asked, told, now_ms, expected):
    found = refusal(asked, [way(**told)], TABLE, now_ms)
    assert (found and found.retry_ms) == expected


def test_a_pool_that_cannot_keep_the_pace_even_alone_lets_nobody_in():
    slow = replace(POOL, name="slow", cost=with_fields(COST, fixed_ms=200))
    late, idle = way(ttft_ms=1500.0), way(slow, ttft_ms=300.0, tpot_ms=201.0)
    found = refusal(wanted(), [late, idle], TABLE, 0)
    assert found is not None and found.way is late
    assert refusal(wanted(), [idle], TABLE, 0) is None, "the only one there is"


def test_the_best_way_decides():
    found = refusal(wanted(), [way(ttft_ms=9000.0), way(ttft_ms=900.0)], TABLE, 0)
    assert found is None
    found = refusal(wanted(), [way(ttft_ms=9000.0), way(ttft_ms=2000.0)], TABLE, 0)
    assert (found.retry_ms, found.way.forecast.ttft_ms) == (1000.0, 2000.0)


def test_what_even_an_idle_node_cannot_keep_may_wait_as_long_as_was_promised():
    """Refusing would help nobody."""
    long = wanted(prompt=5000)
    idle_ms = idle_forecast(long, way(), TABLE).ttft_ms
    assert idle_ms > 5000  # and one second is promised
    assert refusal(long, [way(ttft_ms=idle_ms + 900)], TABLE, 0) is None
    assert refusal(long, [way(ttft_ms=idle_ms + 2500)], TABLE, 0).retry_ms == pytest.approx(1500)


def test_a_pool_whose_pace_is_slower_than_promised_is_no_reason_to_refuse():
    slow = PoolView(name="cpu", model="m", cost=CostModel(fixed_ms=80, prefill_ms=1), places=4)
    assert refusal(wanted(), [way(slow, tpot_ms=120.0)], TABLE, 0) is None
    assert refusal(wanted(), [way(slow, tpot_ms=140.0)], TABLE, 0).retry_ms == pytest.approx(200)


@pytest.mark.parametrize("fixed_ms", [1, 40, 49.9, 60, 500, 5000])
@pytest.mark.parametrize("sla", TABLE.names)
def test_an_idle_node_takes_whatever_it_can_hold(fixed_ms, sla):
    """However slow it is, and whatever was promised: nobody would be served by refusing."""
    cost = CostModel(fixed_ms=fixed_ms, decode_ms=5, prefill_ms=4, context_us=2000)
    sizes = {"places": 1, "total_blocks": 64, "free_blocks": 64, "sequence_blocks": 64}
    pool = PoolView(name="cpu", model="m", cost=cost, **sizes)
    for prompt in (1, 200, 8000):
        asked = wanted(sla, prompt=prompt, max_tokens=200)
        plan = place(asked, None, [pool], TABLE, 0, backlog=dict.fromkeys(TABLE.names, 0))
        assert plan.kind == "cpu", plan


@given(
    ttft_ms=st.floats(0, 1e6),
    tpot_ms=st.floats(0, 1e3),
    prompt=st.integers(1, 10_000),
    sla=st.sampled_from(TABLE.names),
)
def test_after_the_time_that_is_told_it_would_be_taken(ttft_ms, tpot_ms, prompt, sla):
    """Waiting shrinks by a ms each ms: with everything so much sooner it is not too late."""
    asked, output = wanted(sla, prompt=prompt), POOL.output_of(wanted(sla))
    end_ms = ttft_ms + tpot_ms * (output - 1)
    told = way(ttft_ms=ttft_ms, tpot_ms=tpot_ms, end_ms=end_ms)
    found = refusal(asked, [told], TABLE, 0)
    if found is None:
        return
    later = way(
        ttft_ms=ttft_ms - found.retry_ms,
        tpot_ms=tpot_ms - found.retry_ms / output,
        end_ms=end_ms - found.retry_ms,
    )
    assert late_ms(asked, later, TABLE, 0) <= 1e-6


@pytest.mark.parametrize(
    ("error", "expected"), [(0.0, 500.0), (0.2, 200.0), (0.5, None), (9.0, None)]
)
def test_a_prediction_counts_less_by_what_the_model_is_wrong_by(error, expected):
    """A cost model that is wrong by far refuses nobody."""
    unsure = replace(POOL, cost=with_fields(COST, error=error))
    found = refusal(wanted(), [way(unsure, ttft_ms=1500.0)], TABLE, 0)
    assert (found and found.retry_ms) == expected
