"""What a sequence left behind goes to files, and another engine goes on from them: mapped, copied,
without computing a token again."""

import gc
import os
from itertools import islice

import pytest

from kernels.ops import BLOCK_TOKENS
from kv_tier.tier import KvTier, TierLimits
from tests.workers.engine.fake import FakeClock, make_request, run
from tests.workers.engine.prefixes import (
    Computed,
    Files,
    PagedModel,
    PagedRecurrentModel,
    events_of,
    prompt_of,
    sharing_engine,
)
from tests.workers.engine.test_law_one import judged
from tests.workers.engine.test_reuse import cached, uncached
from tests.workers.engine.test_state_memory import Abandons
from workers.engine.engine import FORGET_MS, Engine, StepAbandoned
from workers.engine.kept import Kept
from workers.wire import EndEvent, TokenEvent

MODELS = {"attention": PagedModel, "recurrent": PagedRecurrentModel}


@pytest.fixture(params=sorted(MODELS))
def new_engine(request):
    """Makes engines over one kind of model."""
    return lambda **wanted: sharing_engine(MODELS[request.param](FakeClock()), **wanted)


@pytest.fixture
def files(tmp_path) -> Files:
    return Files(tmp_path)


def finish(engine: Engine, request, journal=(), prefix=None) -> tuple[list, Kept]:
    """Its events and what it kept."""
    engine.add(request, journal, prefix=prefix, keep=True)
    outputs = list(events_of(engine, request.id))
    return [output.event for output in outputs], outputs[-1].kept


def written(new_engine, files: Files, request) -> Kept:
    """What the request leaves behind, in files alone."""
    engine = new_engine()
    _, kept = finish(engine, request)
    files.write(engine, kept)
    engine.release(kept)
    return kept


def resumed(new_engine, files: Files, request, kept: Kept, **wanted) -> tuple[list, Engine, int]:
    """Its events in a new engine that has the files; the engine, and the tokens it computed."""
    engine = new_engine(**wanted)
    prefix = files.prefix(engine, request, request.token_ids, [kept.num_kv])
    computed = Computed(engine)
    engine.add(request, prefix=prefix)
    events = run(engine)[request.id]
    assert [uncached(event) for event in events] == judged(request)
    assert all(opened.fd == -1 for opened in prefix.opened)
    return events, engine, computed.tokens()


def payloads(engine: Engine, kept: Kept) -> list[bytes]:
    """What would be written."""
    sources = engine.sources(kept, state=True)
    return [b"".join(memoryview(p).cast("B") for p in source.parts) for source in sources]


def test_what_is_kept_names_all_that_was_computed(new_engine):
    engine = new_engine()
    request = make_request(token_ids=prompt_of(600), max_tokens=9)
    events, kept = finish(engine, request)
    tokens = [event.token_id for event in events[:-1]]
    assert kept.token_ids == [*request.token_ids, *tokens]
    assert (kept.num_prompt, kept.num_kv) == (600, 600 + len(tokens) - 1)
    chain = engine._chain("default")
    assert [key for key, _ in kept.blocks] == chain.block_keys(kept.token_ids[: kept.num_kv])
    assert kept.tail[0] == chain.key_at(kept.token_ids, kept.num_kv)
    assert (kept.state is None) == (engine._state is None)
    engine.release(kept)
    engine.check()


def test_the_next_turn_in_another_engine_computes_what_is_new(new_engine, files):
    first = make_request(token_ids=prompt_of(600), max_tokens=9)
    kept = written(new_engine, files, first)
    second = make_request(token_ids=[*kept.token_ids, *prompt_of(20, 3)], max_tokens=4)
    events, engine, computed = resumed(new_engine, files, second, kept)
    assert cached(events) == kept.num_kv
    assert computed == 21 + 3
    assert engine.load().kv["mapped_blocks"] == 2


def test_every_turn_after_a_restart_computes_what_is_new_alone(new_engine, files):
    """field.md 31: "restore reports success, next request re-prefills everything (hybrid
    checkpoints not saved)". An engine for each of five turns, and nothing but files between."""
    ids, num_kv = prompt_of(200), 0
    for turn in range(5):
        engine = new_engine()
        request = make_request(token_ids=ids, max_tokens=9, seed=turn)
        prefix = files.prefix(engine, request, ids, [num_kv] if num_kv else [])
        computed = Computed(engine)
        events, kept = finish(engine, request, prefix=prefix)
        assert [uncached(event) for event in events] == judged(request)
        assert cached(events) == num_kv
        assert computed.tokens() == kept.num_kv - num_kv
        files.write(engine, kept)
        engine.release(kept)
        ids, num_kv = [*kept.token_ids, *prompt_of(90, turn)], kept.num_kv


def test_blocks_of_odd_sizes_are_copied(files):
    """A block that is no whole number of pages cannot be mapped."""
    kept = written(sharing_engine, files, make_request(token_ids=prompt_of(600), max_tokens=9))
    second = make_request(token_ids=[*kept.token_ids, 7], max_tokens=4)
    events, engine, _ = resumed(sharing_engine, files, second, kept)
    assert cached(events) == kept.num_kv
    assert engine.load().kv["mapped_blocks"] == 0


@pytest.mark.parametrize("num_tokens", [256, 257, 512, 513])
def test_what_ends_at_a_blocks_end_goes_on_there(new_engine, files, num_tokens):
    """num_kv is num_tokens - 1 or num_tokens, with a tail of 255 tokens or none."""
    for length in (num_tokens - 1, num_tokens):
        request = make_request(token_ids=prompt_of(length), max_tokens=2)
        kept = written(new_engine, files, request)
        assert (kept.tail is None) == (kept.num_kv % BLOCK_TOKENS == 0)
        longer = make_request(token_ids=[*kept.token_ids, 9, 9], max_tokens=3)
        events, _, _ = resumed(new_engine, files, longer, kept)
        assert cached(events) == kept.num_kv


def test_a_missing_block_makes_the_hit_shorter(new_engine, files):
    kept = written(new_engine, files, make_request(token_ids=prompt_of(800), max_tokens=3))
    request = make_request(token_ids=[*kept.token_ids, 9], max_tokens=3)
    files.store.drop("block", kept.blocks[1][0])
    events, _, _ = resumed(new_engine, files, request, kept)
    assert cached(events) in (0, 256)  # without a state at 256 there is nothing to go on from


def test_a_block_that_was_said_to_be_here_and_has_gone_makes_the_hit_shorter(new_engine, files):
    """resident() is a hint: the prefix relies on a block that is evicted before it is used."""
    kept = written(new_engine, files, make_request(token_ids=prompt_of(800), max_tokens=3))
    engine = new_engine()
    request = make_request(token_ids=[*kept.token_ids, 9], max_tokens=3)
    prefix = files.prefix(engine, request, request.token_ids, [kept.num_kv])
    prefix.blocks.pop(kept.blocks[1][0]).close()
    engine.add(request, prefix=prefix)
    events = run(engine)["r"]
    assert [uncached(event) for event in events] == judged(request)
    assert cached(events) in (0, 256)


def test_files_of_another_state_than_the_tail_are_used_as_far_as_both_go(new_engine, files):
    """The state was written at the first turn's end only, the tail at the second's."""
    engine = new_engine()
    _, first = finish(engine, make_request(token_ids=prompt_of(300), max_tokens=3))
    files.write(engine, first)
    second_request = make_request(token_ids=[*first.token_ids, *prompt_of(30)], max_tokens=3)
    _, second = finish(engine, second_request)
    files.write(engine, second, state=False)
    third = make_request(token_ids=[*second.token_ids, 8, 8], max_tokens=3)
    other = new_engine()
    prefix = files.prefix(other, third, third.token_ids, [first.num_kv, second.num_kv])
    other.add(third, prefix=prefix)
    events = run(other)["r"]
    assert [uncached(event) for event in events] == judged(third)
    if other._state is None:
        assert cached(events) == second.num_kv
    else:
        assert cached(events) == 0  # the tail at first.num_kv is not in the prefix: no hit, no harm
    for kept in (first, second):
        engine.release(kept)


def test_mapped_blocks_are_shared_and_stay_when_their_sequence_has_gone(new_engine, files):
    kept = written(new_engine, files, make_request(token_ids=prompt_of(600), max_tokens=9))
    request = make_request(token_ids=[*kept.token_ids, 7], max_tokens=3)
    _, engine, _ = resumed(new_engine, files, request, kept)
    computed = Computed(engine)
    engine.add(make_request("again", [*kept.token_ids, 7], max_tokens=3))
    assert cached(run(engine)["again"]) >= kept.num_kv
    assert computed.tokens() <= 4
    engine._now_ms.now_ms += FORGET_MS
    engine.rest()
    load = engine.load().kv
    assert (load["mapped_blocks"], load["cached_blocks"]) == (2, 2)


def test_a_mapped_block_outlives_its_file(new_engine, files):
    """Unlinking is how files are evicted; who has mapped them goes on."""
    kept = written(new_engine, files, make_request(token_ids=prompt_of(600), max_tokens=9))
    request = make_request(token_ids=[*kept.token_ids, *prompt_of(20, 3)], max_tokens=30)
    engine = new_engine()
    engine.add(request, prefix=files.prefix(engine, request, request.token_ids, [kept.num_kv]))
    begun = [output.event for output in engine.step()]
    for key, _ in kept.blocks:
        files.store.drop("block", key)
    events = begun + run(engine)["r"]
    assert [uncached(event) for event in events] == judged(request)


def test_a_mapped_block_that_is_given_out_is_writable_again(new_engine, files):
    kept = written(new_engine, files, make_request(token_ids=prompt_of(600), max_tokens=9))
    before = [files.store.path("block", key).read_bytes() for key, _ in kept.blocks]
    request = make_request(token_ids=[*kept.token_ids, 7], max_tokens=3)
    _, engine, _ = resumed(new_engine, files, request, kept, num_blocks=4)
    for index in range(4):
        other = make_request(token_ids=prompt_of(900, index), max_tokens=40)
        engine.add(other)
        assert [uncached(event) for event in run(engine)["r"]] == judged(other)
    assert engine.load().kv["mapped_blocks"] == 0
    assert before == [files.store.path("block", key).read_bytes() for key, _ in kept.blocks]


def test_a_mapped_block_of_which_a_part_is_used_is_copied_or_taken_over(new_engine, files):
    """A file is never written to: 500 of 512 tokens are wanted, and there is no room for a copy."""
    kept = written(new_engine, files, make_request(token_ids=prompt_of(515), max_tokens=2))
    before = [files.store.path("block", key).read_bytes() for key, _ in kept.blocks]
    request = make_request(token_ids=[*kept.token_ids, 7], max_tokens=2)
    _, engine, _ = resumed(new_engine, files, request, kept, num_blocks=3)
    shorter = make_request(token_ids=prompt_of(500), max_tokens=200)
    engine.add(shorter)
    events = run(engine)["r"]
    assert [uncached(event) for event in events] == judged(shorter)
    assert cached(events) == (499 if engine._state is None else 0)
    assert before == [files.store.path("block", key).read_bytes() for key, _ in kept.blocks]


@pytest.mark.parametrize("length", [40, 250, 510])
def test_a_move_at_every_token_boundary_says_the_same(new_engine, files, length):
    """Suspended in one engine, written, resumed in another: nothing is computed twice."""
    request = make_request(token_ids=prompt_of(length), max_tokens=10, temperature=0.8)
    whole = judged(request)
    boundary = 0
    while True:
        engine = new_engine(max_step_tokens=100)
        engine.add(request)
        begun = [output.event for output in islice(events_of(engine), boundary)]
        kept = engine.suspend("r")
        if kept is None:
            break
        engine.check()
        files.write(engine, kept)
        engine.release(kept)
        other = new_engine()
        prefix = files.prefix(other, request, kept.token_ids, [kept.num_kv])
        computed = Computed(other)
        other.add(request, begun, prefix=prefix)
        rest = run(other)["r"]
        assert [uncached(event) for event in begun + rest] == whole
        num_tokens = length + len(begun) + sum(isinstance(e, TokenEvent) for e in rest) - 1
        assert computed.tokens() == num_tokens - kept.num_kv
        boundary += 1
    assert boundary == len(whole) - 1  # the last token comes with the end


def test_a_suspended_prefill_goes_on_in_its_middle(new_engine, files):
    request = make_request(token_ids=prompt_of(700), max_tokens=4)
    engine = new_engine()
    engine.add(request)
    for _ in range(7):
        engine.step()
    kept = engine.suspend("r")
    assert kept.num_kv == 7 * 64
    assert not engine.has_work()
    files.write(engine, kept)
    events, _, computed = resumed(new_engine, files, request, kept)
    assert cached(events) == 7 * 64
    assert computed == 700 - 7 * 64 + 3
    engine.release(kept)


def test_a_resume_in_the_same_engine_needs_no_file(new_engine):
    """Whether it is still held, for it is being written, or not any more."""
    request = make_request(token_ids=prompt_of(300), max_tokens=12)
    for is_held in (True, False):
        engine = new_engine()
        engine.add(request)
        begun = [output.event for output in islice(events_of(engine), 5)]
        kept = engine.suspend("r")
        if not is_held:
            engine.release(kept)
        computed = Computed(engine)
        engine.add(request, begun)
        rest = run(engine)["r"]
        assert [uncached(event) for event in begun + rest] == judged(request)
        assert computed.tokens() == len(rest) - 1
        if is_held:
            engine.release(kept)
        engine.check()
        assert engine.load().free_blocks == 16


def test_what_is_held_does_not_change_while_others_run_on_from_it(new_engine, files):
    """A fork: two go on from one end, and the writer reads meanwhile."""
    engine = new_engine()
    _, kept = finish(engine, make_request(token_ids=prompt_of(300), max_tokens=9))
    parts = [
        bytes(memoryview(p).cast("B")) for s in engine.sources(kept, state=True) for p in s.parts
    ]
    forks = [
        make_request(f"f{i}", [*kept.token_ids, 20 + i, 30], max_tokens=20, seed=i) for i in (1, 2)
    ]
    for fork in forks:
        engine.add(fork)
    events = run(engine)
    for fork in forks:
        assert [uncached(event) for event in events[fork.id]] == judged(fork)
        assert cached(events[fork.id]) == kept.num_kv
    now = [
        bytes(memoryview(p).cast("B")) for s in engine.sources(kept, state=True) for p in s.parts
    ]
    assert parts == now
    engine.release(kept)
    engine.check()


def test_a_state_is_held_again_after_release(new_engine, files):
    engine = new_engine()
    _, kept = finish(engine, make_request(token_ids=prompt_of(300), max_tokens=3))
    assert engine.hold_state(kept) is None  # it is still held
    engine.release(kept)
    again = engine.hold_state(kept)
    if engine._state is None:
        assert again is None
        return
    assert [source.kind for source in engine.sources(again, state=True)] == ["state"]
    engine.check()
    engine.release(again)
    engine._state.pool.forget_all()
    assert engine.hold_state(kept) is None
    engine.check()


def test_held_memory_makes_others_wait_not_fail(new_engine):
    engine = new_engine(num_blocks=4)
    _, kept = finish(engine, make_request(token_ids=prompt_of(600), max_tokens=3))
    engine.add(make_request("big", prompt_of(700, 9), max_tokens=9))
    assert engine.step() == [] and engine.load().waiting == 1
    engine.release(kept)
    assert run(engine)["big"][-1].status == "finished"


def test_leaving_before_its_turn_closes_its_files(new_engine, files):
    """field.md 16: an abort before allocation must leak nothing."""
    kept = written(new_engine, files, make_request(token_ids=prompt_of(600), max_tokens=3))
    request = make_request(token_ids=[*kept.token_ids, 7], max_tokens=3)
    engine = new_engine(max_batch=1)
    engine.add(make_request("first"))
    engine.step()
    for leave in ("cancel", "drop", "suspend", "refuse"):
        prefix = files.prefix(engine, request, request.token_ids, [kept.num_kv])
        opened = list(prefix.opened)
        assert len(opened) >= 3
        if leave == "refuse":
            engine.add(make_request("r", [10**6]), prefix=prefix)
        else:
            engine.add(request, prefix=prefix)
        if leave == "suspend":
            empty = engine.suspend("r")
            assert (empty.num_kv, empty.blocks, empty.tail, empty.state) == (0, [], None, None)
            engine.release(empty)
        elif leave == "drop":
            engine.drop("r")
        else:
            engine.cancel("r")
            engine.step()
        assert [one.fd for one in opened] == [-1] * len(opened)
        engine.check()


def test_no_descriptor_stays_open(new_engine, files):
    kept = written(new_engine, files, make_request(token_ids=prompt_of(600), max_tokens=3))
    request = make_request(token_ids=[*kept.token_ids, 7], max_tokens=3)
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        resumed(new_engine, files, request, kept)
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= before


@pytest.mark.parametrize("num_state_slots", [1, 2, 8])
def test_an_abandoned_step_behind_files_says_the_same(files, num_state_slots):
    """Without a checkpoint it would have to write to what is mapped: it starts over instead."""
    new = lambda **wanted: sharing_engine(PagedRecurrentModel(FakeClock()), **wanted)  # noqa: E731
    kept = written(new, files, make_request(token_ids=prompt_of(600), max_tokens=3))
    request = make_request(token_ids=[*kept.token_ids, *prompt_of(90)], max_tokens=9)
    engine = new(after_layer=Abandons(0, 3, 5), num_state_slots=num_state_slots)
    engine.add(request, prefix=files.prefix(engine, request, request.token_ids, [kept.num_kv]))
    events, abandoned = [], 0
    while engine.has_work():
        try:
            events += [output.event for output in engine.step()]
        except StepAbandoned:
            abandoned += 1
        engine.check()
    assert abandoned == 3
    assert [uncached(event) for event in events] == judged(request)


def test_a_request_with_a_complete_journal_keeps_its_tokens(new_engine):
    request = make_request(token_ids=prompt_of(50), max_tokens=4)
    whole = judged(request)
    events, kept = finish(new_engine(), request, whole[:-1])
    assert isinstance(events[0], EndEvent)
    assert kept.token_ids[:50] == list(request.token_ids) and len(kept.token_ids) == 54
    assert kept.num_kv == 0 and kept.blocks == []


def test_a_chain_is_needed_to_keep():
    from tests.workers.engine.fake import make_engine

    with pytest.raises(AssertionError, match="without a chain"):
        make_engine().add(make_request(), keep=True)


def test_what_the_tier_fetches_is_what_the_engine_uses(new_engine, tmp_path):
    """Turn after turn, each in a new engine, with a KvTier between them."""
    tier = KvTier(tmp_path, TierLimits())
    ids, num_kv = prompt_of(300), 0
    for turn in range(4):
        engine = new_engine()
        chain = engine._chain("default")
        request = make_request(token_ids=ids, max_tokens=9, seed=turn)
        prefix = tier.fetch(
            chain,
            ids,
            engine.sizes,
            ends=[num_kv, len(ids) - 1],
            resident=engine.resident,
            prefill_tokens_per_s=0.0,
        )
        events, kept = finish(engine, request, prefix=prefix)
        assert [uncached(event) for event in events] == judged(request)
        assert cached(events) == num_kv
        tier.put("default", engine.sources(kept, state=True))
        engine.release(kept)
        ids, num_kv = [*kept.token_ids, *prompt_of(220, turn)], kept.num_kv
    tier.close()
