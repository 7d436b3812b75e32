"""How requests run and end: every end of ending.py, resuming, abandoning, cancelling."""

import msgspec
import pytest

from tests.workers.engine.fake import (
    CONTEXT,
    END_ID,
    NAN_ID,
    VOCAB,
    FakeClock,
    FakeModel,
    alone,
    ids_of,
    make_engine,
    make_request,
    run,
    text_of,
)
from workers.engine.engine import StepAbandoned
from workers.wire import EndEvent, Request, TokenEvent, Usage


def end_of(events) -> EndEvent:
    assert isinstance(events[-1], EndEvent)
    assert all(isinstance(event, TokenEvent) for event in events[:-1])
    return events[-1]


def ends_by_itself() -> Request:
    """A request whose answer ends by an end token."""
    for first in range(6, VOCAB):
        request = make_request(token_ids=[first], max_tokens=200)
        if end_of(alone(request)).finish_reason == "stop":
            return request
    raise AssertionError("no answer ends by itself")


def without_times(end: EndEvent) -> EndEvent:
    return msgspec.structs.replace(end, ttft_ms=None, tpot_ms=None, queue_ms=None)


def test_max_tokens_ends_with_length():
    events = alone(make_request(max_tokens=5))
    assert [event.index for event in events[:-1]] == [0, 1, 2, 3, 4]
    end = end_of(events)
    assert (end.status, end.finish_reason, end.code, end.error) == (
        "finished",
        "length",
        None,
        None,
    )
    assert end.usage == Usage(prompt_tokens=3, output_tokens=5)
    assert end.digest == events[-2].digest


def test_a_full_context_ends_with_length():
    prompt = [10 + i % 50 for i in range(CONTEXT - 3)]
    events = alone(make_request(token_ids=prompt, max_tokens=500, temperature=0))
    assert end_of(events).finish_reason == "length"
    assert end_of(events).usage.output_tokens == 3


def test_an_end_token_is_an_event_without_text():
    events = alone(ends_by_itself())
    assert (events[-2].token_id, events[-2].text) == (END_ID, "")
    assert END_ID not in ids_of(events[:-2])


def test_a_stop_string_is_cut_off_and_never_shown():
    whole = text_of(alone(make_request(max_tokens=40)))
    stop = whole[20:24]
    events = alone(make_request(max_tokens=40, stop=(stop,)))
    assert end_of(events).finish_reason == "stop"
    assert text_of(events) == whole[: whole.index(stop)]


def test_text_held_back_comes_with_the_end():
    whole = text_of(alone(make_request(max_tokens=40)))
    events = alone(make_request(max_tokens=40, stop=(whole[-3:] + "never",)))
    assert text_of(events) == whole
    assert end_of(events).text == whole[-3:]


def test_a_prompt_that_never_fits_is_refused_and_others_run():
    engine = make_engine(num_blocks=1)
    engine.add(make_request("big", max_tokens=300))
    engine.add(make_request("small"))
    events = run(engine)
    assert (end_of(events["big"]).status, end_of(events["big"]).code) == ("failed", "too_large")
    assert end_of(events["small"]).status == "finished"


def test_a_prompt_as_long_as_the_context_is_refused():
    end = end_of(alone(make_request(token_ids=[10] * CONTEXT)))
    assert (end.status, end.code) == ("failed", "too_large")
    assert "context" in end.error


@pytest.mark.parametrize("bad", [[], [VOCAB], [-1], [10, 2**40]])
def test_ids_outside_the_vocabulary_are_refused(bad):
    end = end_of(alone(make_request(token_ids=bad)))
    assert (end.status, end.code) == ("failed", "bad_request")
    assert "token_ids" in end.error


def test_logits_that_are_not_finite_fail_their_own_request_only():
    engine = make_engine()
    engine.add(make_request("bad", [10, NAN_ID, 12]))
    engine.add(make_request("good"))
    events = run(engine)
    assert [end_of(events["bad"]).status, end_of(events["bad"]).code] == ["failed", "numeric_error"]
    assert events["good"][:-1] == alone(make_request())[:-1]


def test_cancel_ends_a_running_and_a_waiting_request_at_the_next_step():
    engine = make_engine(max_batch=1)
    engine.add(make_request("running"))
    engine.add(make_request("waiting"))
    engine.step()
    engine.cancel("running")
    engine.cancel("waiting")
    outputs = {output.request_id: output.event for output in engine.step()}
    assert {k: (v.status, v.code) for k, v in outputs.items()} == {
        "running": ("cancelled", "cancelled"),
        "waiting": ("cancelled", "cancelled"),
    }
    assert outputs["running"].usage.output_tokens == 1
    assert outputs["waiting"].digest == ""
    assert not engine.has_work()


def test_cancelling_what_is_not_here_does_nothing():
    engine = make_engine()
    engine.cancel("nobody")
    engine.add(make_request())
    engine.step()
    engine.cancel("nobody")
    assert end_of(run(engine)["r"]).status == "finished"


def test_a_deadline_ends_a_request_wherever_it_is():
    clock = FakeClock()
    engine = make_engine(clock, FakeModel(clock, fixed_ms=10), max_batch=1)
    engine.add(make_request("running", max_tokens=100, deadline_ms=clock() + 25))
    engine.add(make_request("waiting", deadline_ms=clock() + 25))
    events = run(engine)
    assert end_of(events["running"]).status == "expired"
    assert len(events["running"]) == 3 + 1
    assert end_of(events["waiting"]).code == "expired"


def test_a_dropped_request_is_gone_without_a_word():
    engine = make_engine(max_batch=1)
    for name in ("a", "b"):
        engine.add(make_request(name))
    engine.step()
    engine.drop("a")
    engine.drop("b")
    engine.drop("nobody")
    assert engine.step() == []
    assert not engine.has_work()
    assert engine.load().free_blocks == engine.load().total_blocks


def test_a_dropped_request_can_come_back():
    engine = make_engine()
    engine.add(make_request())
    begun = [output.event for _ in range(3) for output in engine.step()]
    engine.drop("r")
    engine.add(make_request(), begun)
    assert ids_of(begun) + ids_of(run(engine)["r"]) == ids_of(alone(make_request()))


def test_times_are_of_the_first_step_and_the_tokens():
    clock = FakeClock()
    engine = make_engine(clock, FakeModel(clock, fixed_ms=7, per_token_ms=1))
    engine.add(make_request(arrival_ms=clock() - 100, token_ids=[10] * 30, max_tokens=3))
    end = end_of(run(engine)["r"])
    assert (end.queue_ms, end.ttft_ms, end.tpot_ms) == (100.0, 137.0, 8.0)


def test_a_complete_journal_only_lacks_its_end():
    """The owner died between the last token and the end."""
    stop = text_of(alone(make_request(max_tokens=40)))[20:24]
    for wanted in ({"max_tokens": 5}, {"max_tokens": 40, "stop": (stop,)}):
        events = alone(make_request(**wanted))
        again = alone(make_request(**wanted), events[:-1])
        assert [without_times(again[0])] == [without_times(event) for event in events[-1:]]
        assert again[1:] == []


def test_a_journalled_end_token_only_lacks_its_end():
    events = alone(ends_by_itself())
    again = alone(ends_by_itself(), events[:-1])
    assert [without_times(event) for event in again] == [without_times(events[-1])]


def test_a_journal_with_a_gap_is_our_own_mistake():
    events = alone(make_request())
    with pytest.raises(AssertionError, match="gap"):
        make_engine().add(make_request(), events[1:3])


def test_a_request_is_added_once():
    engine = make_engine()
    engine.add(make_request())
    with pytest.raises(AssertionError, match="already here"):
        engine.add(make_request())


def test_an_abandoned_step_changes_nothing():
    layers = 0

    def after_layer() -> None:
        nonlocal layers
        layers += 1
        if layers % 4 == 2:  # in the first step after the prefill, between its layers, and so on
            raise StepAbandoned

    engine = make_engine(after_layer=after_layer)
    for name in ("a", "b"):
        engine.add(make_request(name, [10, 11] if name == "a" else [12] * 100))
    events: dict[str, list] = {"a": [], "b": []}
    abandoned = 0
    while engine.has_work():
        before = engine.load()
        try:
            for output in engine.step():
                events[output.request_id].append(output.event)
        except StepAbandoned:
            abandoned += 1
            assert engine.load().tokens_per_s == before.tokens_per_s
        engine.check()
    assert abandoned > 5
    assert events["a"] == alone(make_request("a", [10, 11]))
    assert events["b"] == alone(make_request("b", [12] * 100))


def test_every_logit_of_a_watched_request_is_handed_out():
    seen = []

    def on_logits(request_id, position, logits) -> None:
        seen.append((request_id, position, logits.copy()))

    engine = make_engine(on_logits=on_logits)
    engine.add(make_request("beside", [20] * 30, max_tokens=20))
    engine.add(
        make_request("watched", range(10, 90), max_tokens=4, temperature=0), every_logit=True
    )
    events = run(engine)
    assert {request_id for request_id, _, _ in seen} == {"watched"}
    rows = [row for _, _, logits in seen for row in logits]
    positions = [p + i for _, p, logits in seen for i in range(len(logits))]
    assert positions == list(range(80 + 3))
    assert [int(row.argmax()) for row in rows[79:]] == ids_of(events["watched"])
    assert events["watched"] == alone(
        make_request("watched", range(10, 90), max_tokens=4, temperature=0)
    )


def test_load_counts_what_is_here():
    engine = make_engine(max_batch=2, num_blocks=9)
    for name in "abc":
        engine.add(make_request(name))
    engine.step()
    load = engine.load()
    assert (load.running, load.waiting, load.free_blocks, load.total_blocks) == (2, 1, 7, 9)
    assert load.tokens_per_s == 0.2


def test_resting_does_not_disturb_what_runs():
    engine = make_engine()
    engine.add(make_request())
    engine.step()
    engine.rest()
    events = run(engine)["r"]
    assert ids_of(events) == ids_of(alone(make_request()))[1:]
    engine.rest()
    engine.add(make_request())
    assert ids_of(run(engine)["r"]) == ids_of(alone(make_request()))
