"""Law one at the engine: nothing but the request decides its tokens, texts and digests.

Hypothesis draws the company, the order of arrival, the chunks, the budget, the clock, who is
cancelled, which steps are abandoned and where a journal is cut. The judge is the same request with
an engine of its own.
"""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.workers.engine.fake import (
    FakeClock,
    FakeModel,
    alone,
    make_engine,
    make_request,
    run,
    text_of,
)
from workers.engine.engine import StepAbandoned
from workers.wire import EndEvent

TOKEN = st.integers(4, 95)
PARAMS = st.fixed_dictionaries(
    {"max_tokens": st.integers(1, 30), "sla": st.sampled_from(["realtime", "standard", "batch"])},
    optional={
        "temperature": st.sampled_from([0.0, 0.3, 1.7]),
        "top_k": st.integers(0, 20),
        "top_p": st.sampled_from([0.3, 0.9]),
        "min_p": st.sampled_from([0.05, 0.5]),
        "presence_penalty": st.sampled_from([-1.0, 1.0]),
        "frequency_penalty": st.sampled_from([-1.0, 0.5]),
        "repetition_penalty": st.sampled_from([0.8, 1.3]),
        "seed": st.integers(0, 2**64 - 1),
        "logprobs": st.integers(0, 4),
        "stop": st.lists(st.text("abcdeé", min_size=1, max_size=4), max_size=3).map(tuple),
    },
)
PROMPT = st.lists(TOKEN, min_size=1, max_size=5) | st.builds(
    lambda ids, length: (ids * length)[:length], st.lists(TOKEN, min_size=1), st.integers(1, 400)
)
PLAN = st.fixed_dictionaries(
    {
        "max_batch": st.integers(1, 9),
        "max_step_tokens": st.integers(9, 200),
        "step_budget_ms": st.integers(1, 300),
        "num_blocks": st.integers(4, 30),
        "fixed_ms": st.integers(0, 100),
        "per_token_ms": st.integers(0, 10),
    }
)


def same(event):
    """Without times: they depend on company, as they should."""
    if isinstance(event, EndEvent):
        return msgspec.structs.replace(event, ttft_ms=None, tpot_ms=None, queue_ms=None)
    return event


def judged(request, journal=()) -> list:
    return [same(event) for event in alone(request, journal)]


def engine_of(plan: dict, after_layer=None):
    clock = FakeClock()
    model = FakeModel(clock, plan["fixed_ms"], plan["per_token_ms"])
    limits = {k: v for k, v in plan.items() if not k.endswith("_ms") or k == "step_budget_ms"}
    seams = {} if after_layer is None else {"after_layer": after_layer}
    return make_engine(clock, model, **limits, **seams)


@settings(max_examples=60)
@given(st.data(), PLAN)
def test_any_company_any_order_any_chunks(data, plan):
    cases = data.draw(st.lists(st.tuples(PROMPT, PARAMS), min_size=1, max_size=8))
    requests = [make_request(f"r{i}", ids, **params) for i, (ids, params) in enumerate(cases)]
    arrives = [data.draw(st.integers(0, 20)) for _ in requests]
    cancels = {i: data.draw(st.integers(0, 40)) for i in range(1, len(requests), 2)}
    abandon = data.draw(st.integers(2, 7))
    layers = [0]

    def after_layer() -> None:
        layers[0] += 1
        if layers[0] % (3 * abandon) == abandon:
            raise StepAbandoned

    engine, events = engine_of(plan, after_layer), {request.id: [] for request in requests}
    for turn in range(100_000):
        if turn > 40 and not engine.has_work():
            break
        for index, request in enumerate(requests):
            if arrives[index] == turn:
                engine.add(request)
            if cancels.get(index) == turn:
                engine.cancel(request.id)
        try:
            outputs = engine.step()
        except StepAbandoned:
            outputs = []
        for output in outputs:
            events[output.request_id].append(same(output.event))
        engine.check()
    for request in requests:
        got, expected = events[request.id], judged(request)
        if got[-1].status == "cancelled":
            assert got[:-1] == expected[: len(got) - 1]
        else:
            assert got == expected
    assert engine.load().free_blocks == plan["num_blocks"]


@settings(max_examples=60)
@given(PROMPT, PARAMS, st.data(), PLAN)
def test_a_journal_cut_anywhere_goes_on_with_the_same(prompt, params, data, plan):
    request = make_request("r", prompt, **params)
    events = judged(request)
    cut = data.draw(st.integers(0, len(events) - 1))
    engine = engine_of(plan)
    engine.add(make_request("other", [50] * 30))
    engine.step()
    engine.add(request, events[:cut])
    assert [same(event) for event in run(engine)["r"]] == events[cut:]


@pytest.mark.parametrize("tail", ["", "?"])
@pytest.mark.parametrize("begin", [0, 15, 33])
def test_a_stop_string_half_complete_at_the_cut_stays_hidden(begin, tail):
    """The first owner held "ab" of the stop string "abX" back and died: nothing is lost or
    repeated.

    Without a tail the stop string completes; with one it only threatens to.
    """
    whole = text_of(alone(make_request(max_tokens=40)))
    stop = whole[begin : begin + 4] + tail
    request = make_request(max_tokens=40, stop=(stop,))
    events = judged(request)
    assert text_of(events) == whole.split(stop)[0]
    for cut in range(len(events)):
        assert judged(request, events[:cut]) == events[cut:]


def test_a_hand_over_twice_is_as_good_as_none():
    request = make_request("r", [10] * 200, max_tokens=30)
    events = judged(request)
    first = [same(event) for event in alone(request, events[:7])][:9]
    assert judged(request, events[:7] + first) == events[16:]
