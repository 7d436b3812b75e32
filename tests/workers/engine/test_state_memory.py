"""Recurrent state follows its sequence: nothing but time is lost when a step is abandoned.

The model's state is a hash of all tokens so far, and it asserts that state and KV agree.
"""

from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.workers.engine.fake import FakeClock, RecurrentModel, make_engine, make_request, run
from tests.workers.engine.test_law_one import PARAMS, PLAN, PROMPT, judged, same
from workers.engine.engine import Engine, StepAbandoned
from workers.engine.state_memory import is_checkpoint_due

LAYERS_OF_A_STEP = 3


class Abandons:
    """An after_layer that leaves the steps it is told to, after their second layer."""

    def __init__(self, *steps: int) -> None:
        self.steps, self.layers = steps, 0

    def __call__(self) -> None:
        self.layers += 1
        step, layer = divmod(self.layers, LAYERS_OF_A_STEP)
        if step in self.steps and layer == 2:
            self.layers += 1  # the third layer does not come
            raise StepAbandoned


def recurrent_engine(after_layer=None, **wanted) -> Engine:
    seams = {} if after_layer is None else {"after_layer": after_layer}
    engine = make_engine(model=RecurrentModel(FakeClock()), **seams, **wanted)
    engine._home.state.delta[...] = -1  # what a slot held before is never read
    return engine


def step(engine: Engine) -> None:
    with suppress(StepAbandoned):
        engine.step()
    engine.check()


@pytest.mark.parametrize(
    ("begin", "end", "num_prompt", "due"),
    [
        (0, 10, 11, False),
        (0, 10, 10, True),
        (9, 10, 10, True),
        (10, 11, 10, False),
        (255, 256, 10, True),
        (256, 257, 10, False),
        (0, 300, 900, True),
        (10, 200, 900, False),
    ],
)
def test_checkpoints_are_taken_at_a_prompts_end_and_at_a_blocks(begin, end, num_prompt, due):
    assert is_checkpoint_due(begin, end, num_prompt) == due


def test_an_abandoned_decode_starts_again_from_the_prompts_end():
    engine = recurrent_engine(Abandons(4))
    engine.add(make_request("r", range(10, 60)))
    sequence = engine._sequences["r"]
    for _ in range(4):
        step(engine)
    assert sequence.num_cached == 53
    step(engine)
    assert sequence.num_cached == 50
    events = run(engine)["r"]
    assert [same(event) for event in events] == judged(make_request("r", range(10, 60)))[4:]


def test_an_abandoned_prefill_starts_again_from_its_last_block():
    engine = recurrent_engine(Abandons(2), max_step_tokens=300, chunk=200)
    engine.add(make_request("r", list(range(10, 60)) * 12))
    step(engine)
    step(engine)
    assert engine._sequences["r"].num_cached == 400
    step(engine)
    assert engine._sequences["r"].num_cached == 400
    run(engine)


def test_without_a_checkpoint_it_starts_from_nothing():
    """One slot, and it is the sequence's own."""
    engine = recurrent_engine(Abandons(4), num_state_slots=1)
    request = make_request("r", range(10, 60))
    engine.add(request)
    events = [output.event for _ in range(4) for output in engine.step()]
    step(engine)
    assert engine._sequences["r"].num_cached == 0
    events += run(engine)["r"]
    assert [same(event) for event in events] == judged(request)


def test_only_the_sequences_of_the_step_go_back():
    engine = recurrent_engine(Abandons(3), max_batch=1, num_state_slots=4)
    engine.add(make_request("a", range(10, 60), sla="batch"))
    step(engine)
    step(engine)
    engine.preempt("a")
    engine.add(make_request("b", [20] * 30, sla="realtime"))
    step(engine)
    step(engine)
    assert engine._sequences["a"].num_cached == 51
    assert engine._sequences["b"].num_cached == 30
    run(engine)


@pytest.mark.parametrize("leave", ["end", "drop", "cancel", "preempt and drop"])
def test_nothing_is_held_when_all_have_left(leave):
    engine = recurrent_engine()
    for name in ("a", "b"):
        engine.add(make_request(name, range(10, 60)))
        step(engine)
    for name in ("a", "b"):
        if leave == "cancel":
            engine.cancel(name)
        if leave.startswith("preempt"):
            engine.preempt(name)
        if leave.endswith("drop"):
            engine.drop(name)
    run(engine)
    pool = engine._state.pool
    assert (pool.num_held, pool.num_checkpoints) == (0, 0)
    assert engine.load().free_blocks == engine.load().total_blocks
    engine.rest()


def test_more_sequences_than_slots_wait_for_one():
    engine = recurrent_engine(num_state_slots=2)
    requests = [make_request(f"r{i}", range(10, 10 + 9 * i + 5)) for i in range(6)]
    for request in requests:
        engine.add(request)
    assert engine._scheduler.schedule(0) and engine.load().running == 2
    events = run(engine)
    for request in requests:
        assert [same(event) for event in events[request.id]] == judged(request)


@settings(max_examples=60)
@given(st.data(), PLAN)
def test_any_company_any_chunks_any_abandoned_steps_any_preemption(data, plan):
    cases = data.draw(st.lists(st.tuples(PROMPT, PARAMS), min_size=1, max_size=6))
    requests = [make_request(f"r{i}", ids, **params) for i, (ids, params) in enumerate(cases)]
    arrives = [data.draw(st.integers(0, 12)) for _ in requests]
    abandoned = data.draw(st.sets(st.integers(0, 200), max_size=12))
    preempted = data.draw(st.dictionaries(st.integers(0, 200), st.integers(0, 5), max_size=20))
    slots = data.draw(st.integers(1, 2 * plan["max_batch"]))
    wanted = {k: v for k, v in plan.items() if not k.endswith("_ms") or k == "step_budget_ms"}
    engine = recurrent_engine(Abandons(*abandoned), num_state_slots=slots, **wanted)
    events = {request.id: [] for request in requests}
    for turn in range(100_000):
        if turn > 12 and not engine.has_work():
            break
        for request, arrival in zip(requests, arrives, strict=True):
            if arrival == turn:
                engine.add(request)
        if turn in preempted:
            engine.preempt(f"r{preempted[turn]}")
        try:
            outputs = engine.step()
        except StepAbandoned:
            outputs = []
        for output in outputs:
            events[output.request_id].append(same(output.event))
        engine.check()
    for request in requests:
        assert events[request.id] == judged(request)
    assert engine.load().free_blocks == plan["num_blocks"]
    assert engine._state.pool.num_held == engine._state.pool.num_checkpoints == 0
