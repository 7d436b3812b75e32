"""Full blocks of who runs are handed out to be written, once each; whoever dies loses little."""

import pytest

from kernels.ops import BLOCK_TOKENS
from tests.workers.engine.fake import NAN_ID, FakeClock, make_request
from tests.workers.engine.prefixes import (
    Computed,
    Files,
    PagedModel,
    PagedRecurrentModel,
    prompt_of,
    sharing_engine,
)
from tests.workers.engine.test_law_one import judged
from tests.workers.engine.test_reuse import uncached
from workers.engine.engine import Engine
from workers.wire import EndEvent

MODELS = [PagedModel, PagedRecurrentModel]
PROMPT = prompt_of(700, 3)  # which is answered at length


def engine_of(model) -> Engine:
    engine = sharing_engine(model(FakeClock()), max_step_tokens=100)
    engine._behind.step_tokens = BLOCK_TOKENS
    return engine


def steps(engine: Engine, count: int, said: list | None = None) -> None:
    for _ in range(count):
        outputs = engine.step()
        if said is not None:
            said += [output.event for output in outputs]
        engine.check()


@pytest.fixture(params=MODELS)
def engine(request):
    return engine_of(request.param)


def test_a_block_is_handed_out_once_it_is_full_and_only_once(engine):
    engine.add(make_request("r", PROMPT, max_tokens=100), keep=True, behind=True)
    seen = []
    for _ in range(90):
        steps(engine, 1)
        num_full = engine._sequences["r"].num_cached // BLOCK_TOKENS
        for kept in engine.behind(None):
            seen += range(kept.first, len(kept.blocks))
            assert len(kept.blocks) == num_full and kept.tail is None and kept.state is None
            engine.release(kept)
    assert seen == [0, 1, 2]


def test_what_is_being_written_of_one_that_failed_is_not_found_again(engine):
    ids = list(PROMPT)
    ids[650] = NAN_ID
    engine.add(make_request("r", ids), keep=True, behind=True)
    steps(engine, 6)
    [kept] = engine.behind(0)
    assert len(kept.blocks) == 2
    said = []
    steps(engine, 3, said)
    assert said[-1].code == "numeric_error"
    engine.release(kept)
    assert engine.load().kv["cached_blocks"] == 0
    assert not any(engine.resident(key) for key, _ in kept.blocks)
    engine.check()


def test_one_kept_of_a_sequence_is_out_at_a_time(engine):
    engine.add(make_request("r", PROMPT, max_tokens=100), keep=True, behind=True)
    steps(engine, 4)
    [first] = engine.behind(None)
    steps(engine, 4)
    assert engine.behind(None) == []
    engine.release(first)
    [second] = engine.behind(None)
    assert (second.first, len(second.blocks)) == (len(first.blocks), 2)
    engine.release(second)


def test_who_did_not_ask_for_it_is_not_written(engine):
    engine.add(make_request("r", PROMPT), keep=True)
    steps(engine, 5)
    assert engine.behind(0) == []


def test_what_is_out_is_held_when_its_sequence_is_gone(engine):
    engine.add(make_request("r", PROMPT, max_tokens=100), keep=True, behind=True)
    steps(engine, 4)
    [kept] = engine.behind(0)
    engine.drop("r")
    engine.check()
    load = engine.load()
    assert load.total_blocks - load.free_blocks == len(kept.blocks)
    engine.release(kept)
    engine.check()
    assert engine.load().free_blocks == load.total_blocks


def test_a_turn_that_only_goes_on_hands_out_nothing_old(engine):
    engine.add(make_request("r", PROMPT, max_tokens=4), keep=True)
    while engine.has_work():
        [*_, last] = engine.step() or [None]
    engine.release(last.kept)
    ids = [*last.kept.token_ids, *PROMPT[:9]]
    engine.add(make_request("s", ids, max_tokens=4), keep=True, behind=True)
    for _ in range(3):
        steps(engine, 1)
        assert engine.behind(None) == []


def test_a_state_comes_along_once_in_a_while():
    engine = engine_of(PagedRecurrentModel)
    clock = engine._now_ms
    engine.add(make_request("r", PROMPT, max_tokens=200), keep=True, behind=True)
    positions = []
    for _ in range(150):
        steps(engine, 1)
        clock.now_ms += 10
        for kept in engine.behind(300):
            if kept.state is not None:
                positions.append(kept.num_kv)
                assert kept.state[0] == kept.blocks[-1][0]
            engine.release(kept)
    assert positions == [512, 768]
    names = [c.name for c in engine._state.pool._checkpoints.values() if c.is_lasting]
    assert len(names) <= 2, "earlier ones make room"


def test_who_starts_over_in_a_long_prompt_still_leaves_states_on_the_way():
    engine = engine_of(PagedRecurrentModel)
    engine.add(make_request("r", prompt_of(1000), max_tokens=4), keep=True, behind=True)
    steps(engine, 1)
    assert engine.behind(0) == []
    engine._scheduler.start_over(engine._sequences["r"])
    positions = []
    for _ in range(20):
        steps(engine, 1)
        for kept in engine.behind(0):
            positions.append(kept.state and kept.num_kv)
            engine.release(kept)
    assert positions == [256, 512, 768]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("num_steps", [3, 6, 9, 60, 120])
def test_who_dies_in_mid_turn_loses_only_what_was_not_full(model, num_steps, tmp_path):
    engine, files = engine_of(model), Files(tmp_path)
    request = make_request("r", PROMPT, max_tokens=200)
    engine.add(request, keep=True, behind=True)
    said: list = []
    for _ in range(num_steps):
        steps(engine, 1, said)
        for kept in engine.behind(0):
            files.write(engine, kept)
            engine.release(kept)
    num_written = engine._sequences["r"].num_cached // BLOCK_TOKENS * BLOCK_TOKENS
    another = engine_of(model)
    ids = [*PROMPT, *(event.token_id for event in said)]
    prefix = files.prefix(another, request, ids)
    another.add(request, said, prefix=prefix)
    computed = Computed(another)
    steps(another, 1, said)
    while another.has_work():
        steps(another, 1, said)
    assert [uncached(event) for event in said] == judged(request)
    assert isinstance(said[-1], EndEvent)
    assert computed.tokens() == len(PROMPT) + len(said) - 2 - num_written
