"""Blocks, tails and states stay in memory when their sequence has gone: who begins alike computes
only the rest, and says the same."""

import msgspec
import pytest

from kernels.ops import BLOCK_TOKENS
from tests.workers.engine.fake import (
    NAN_ID,
    FakeClock,
    FakeModel,
    RecurrentModel,
    ids_of,
    make_request,
    run,
)
from tests.workers.engine.prefixes import Computed, prompt_of, sharing_engine
from tests.workers.engine.test_law_one import judged, same
from workers.engine.engine import FORGET_MS
from workers.wire import EndEvent

MODELS = {"attention": FakeModel, "recurrent": RecurrentModel}


@pytest.fixture(params=sorted(MODELS))
def engine(request):
    return sharing_engine(MODELS[request.param](FakeClock()))


def uncached(event):
    """Without times and without what was found: both depend on company, as they should."""
    event = same(event)
    if isinstance(event, EndEvent) and event.usage is not None:
        return msgspec.structs.replace(
            event, usage=msgspec.structs.replace(event.usage, cached_tokens=0)
        )
    return event


def say(engine, request, journal=()):
    """Its events, checked against the run that shares nothing."""
    engine.add(request, journal)
    events = run(engine)[request.id]
    assert [uncached(event) for event in events] == judged(request)[len(journal) :]
    return events


def cached(events) -> int:
    return events[-1].usage.cached_tokens


def test_the_same_prompt_again_is_computed_from_its_last_token(engine):
    request = make_request(token_ids=prompt_of(300), max_tokens=5)
    assert cached(say(engine, request)) == 0
    computed = Computed(engine)
    events = say(engine, request)
    expected = 299 if engine._state is None else 256
    assert cached(events) == expected
    assert computed.tokens() == 300 - expected + 4


def test_the_next_turn_begins_where_the_last_ended(engine):
    """The answer's KV is used, too; its last token was sampled, not computed."""
    first = prompt_of(300)
    answer = ids_of(say(engine, make_request(token_ids=first, max_tokens=9)))
    second = [*first, *answer, *prompt_of(30, 5)]
    computed = Computed(engine)
    events = say(engine, make_request(token_ids=second, max_tokens=3))
    assert cached(events) == 300 + len(answer) - 1
    assert computed.tokens() == len(second) - cached(events) + 2


def test_a_common_system_prompt_is_shared(engine):
    """To its last token; where there is a state, to the last that has one."""
    system = prompt_of(600)
    say(engine, make_request(token_ids=[*system, 20, 21], max_tokens=3))
    say(engine, make_request(token_ids=[*system, 30, 31], max_tokens=3))
    events = say(engine, make_request(token_ids=[*system, 40, 41], max_tokens=3))
    assert cached(events) == (600 if engine._state is None else 512)


def test_the_end_of_what_was_found_without_a_state_gets_one():
    """The first two prompts part inside the third block; only their own last blocks got one."""
    engine = sharing_engine(RecurrentModel(FakeClock()), num_blocks=40)
    system = prompt_of(520)
    ends = [prompt_of(300, first) for first in (20, 40, 60)]
    say(engine, make_request(token_ids=system + ends[0], max_tokens=2))
    assert cached(say(engine, make_request(token_ids=system + ends[1], max_tokens=2))) == 0
    assert cached(say(engine, make_request(token_ids=system + ends[2], max_tokens=2))) == 512


@pytest.mark.parametrize("max_step_tokens", [64, 100, 1000])
def test_a_chunk_ends_where_its_state_is_wanted(max_step_tokens):
    """However chunks fall, the last block's end in the prompt gets its checkpoint."""
    engine = sharing_engine(RecurrentModel(FakeClock()), max_step_tokens=max_step_tokens)
    system = prompt_of(530)
    say(engine, make_request(token_ids=[*system, 7], max_tokens=2))
    assert cached(say(engine, make_request(token_ids=[*system, 8], max_tokens=2))) == 512


@pytest.mark.parametrize("num_blocks", [1, 2])
def test_a_prompt_of_whole_blocks_still_computes_its_last_token(engine, num_blocks):
    """field.md 40: "corruption when prefix length equals block size"."""
    request = make_request(token_ids=prompt_of(num_blocks * BLOCK_TOKENS), max_tokens=4)
    say(engine, request)
    events = say(engine, request)
    assert 0 < cached(events) < num_blocks * BLOCK_TOKENS or engine._state is not None
    longer = make_request(token_ids=[*request.token_ids, 11, 12], max_tokens=4)
    say(engine, longer)


def test_cold_and_warm_agree_in_every_bit_at_every_length(engine):
    """field.md 40: "cold vs cache hit flips 18 of 40 greedy answers"."""
    whole = prompt_of(2 * BLOCK_TOKENS + 3)
    for length in [1, 2, 100, 255, 256, 257, 258, 511, 512, 513, 514, 515]:
        for _ in range(2):
            say(engine, make_request(token_ids=whole[:length], max_tokens=3, temperature=0.9))


def test_another_tenant_finds_nothing(engine):
    """And both find their own."""
    request = make_request(token_ids=prompt_of(300), max_tokens=5)
    theirs = msgspec.structs.replace(request, tenant="them")
    assert cached(say(engine, request)) == 0
    assert cached(say(engine, theirs)) == 0
    assert cached(say(engine, theirs)) > 0
    assert cached(say(engine, request)) > 0


def test_an_engine_without_a_chain_shares_nothing():
    from tests.workers.engine.fake import make_engine

    engine = make_engine()
    request = make_request(token_ids=prompt_of(300))
    for _ in range(2):
        engine.add(request)
        assert cached(run(engine)["r"]) == 0
    assert engine.load().kv["cached_blocks"] == 0


def test_who_wants_every_logit_computes_every_token():
    seen = []
    engine = sharing_engine(on_logits=lambda _, position, logits: seen.append((position, logits)))
    request = make_request(token_ids=prompt_of(300), max_tokens=2, temperature=0)
    say(engine, request)
    engine.add(request, every_logit=True)
    assert cached(run(engine)["r"]) == 0
    assert sum(len(logits) for _, logits in seen) == 301


def test_a_journal_counts_as_known(engine):
    request = make_request(token_ids=prompt_of(300), max_tokens=20)
    events = say(engine, request)
    computed = Computed(engine)
    engine.add(request, [uncached(event) for event in events[:10]])
    rest = run(engine)["r"]
    assert [uncached(event) for event in rest] == judged(request)[10:]
    assert cached(rest) <= 300
    assert computed.tokens() <= 20 + (0 if engine._state is None else 54)


def test_two_at_once_share_blocks_and_write_to_none_of_them(engine):
    system = prompt_of(256)
    say(engine, make_request(token_ids=[*system, 7], max_tokens=2))
    requests = [
        make_request(f"r{i}", [*system, *prompt_of(30 + i, i)], max_tokens=6) for i in range(4)
    ]
    for request in requests:
        engine.add(request)
    begun = engine.step()
    engine.check()
    firsts = {engine._sequences[request.id].blocks[0] for request in requests}
    assert len(firsts) == 1
    assert engine._memory.pool.holders(firsts.pop()) == 4
    events = run(engine)
    for request in requests:
        first = [output.event for output in begun if output.request_id == request.id]
        assert [uncached(e) for e in first + events[request.id]] == judged(request)


def test_all_memory_is_free_when_all_have_ended(engine):
    for index in range(5):
        say(engine, make_request(token_ids=prompt_of(300, index), max_tokens=3))
    load = engine.load()
    assert load.free_blocks == load.total_blocks
    assert load.kv["cached_blocks"] == 10


def test_what_is_cached_makes_room_end_first(engine):
    """Of the longest unused sequence the last block goes first: its beginning is still a hit."""
    first, second = prompt_of(700), prompt_of(700, 50)
    for ids in (first, second):
        say(engine, make_request(token_ids=ids, max_tokens=2))
    pool = engine._memory.pool
    keys = engine._chain("default").block_keys(first)
    say(engine, make_request(token_ids=prompt_of(900, 70), max_tokens=100))
    assert pool.num_free == 16 and engine.load().kv["dropped_blocks"] == 0
    for index in (30, 31, 32):
        say(engine, make_request(token_ids=prompt_of(900, index), max_tokens=100))
    assert engine.load().kv["dropped_blocks"] > 0
    known = [pool.find(key) is not None for key in keys]
    assert known == sorted(known, reverse=True)
    say(engine, make_request(token_ids=first, max_tokens=2))


@pytest.mark.parametrize("num_blocks", [2, 3])
def test_its_own_beginning_is_neither_counted_twice_nor_evicted(engine, num_blocks):
    """The pool is exactly as large as the request: everything it finds must be part of that."""
    small = sharing_engine(type(engine._model)(FakeClock()), num_blocks=num_blocks)
    ids = prompt_of(num_blocks * BLOCK_TOKENS - 40)
    for max_tokens in (5, 20, 40):
        events = say(small, make_request(token_ids=ids, max_tokens=max_tokens))
    assert cached(events) > 0


@pytest.mark.parametrize(
    ("num_blocks", "max_tokens", "is_copied"), [(3, 2, True), (4, 20, True), (3, 20, False)]
)
def test_a_full_block_that_is_used_in_part_is_copied_if_there_is_room(
    num_blocks, max_tokens, is_copied
):
    """Else it is taken over: the third block has to come from somewhere."""
    engine = sharing_engine(num_blocks=num_blocks)
    ids = prompt_of(512)
    say(engine, make_request(token_ids=ids, max_tokens=1))
    events = say(engine, make_request(token_ids=ids[:500], max_tokens=max_tokens))
    assert cached(events) == 499
    second = engine._chain("default").block_keys(ids)[1]
    assert engine.resident(second) == is_copied
    say(engine, make_request(token_ids=ids, max_tokens=1))


def test_what_failed_leaves_nothing_behind(engine):
    """field.md 30: "half-written KV stays and poisons later requests"."""
    ids = prompt_of(400)
    ids[390] = NAN_ID
    for _ in range(2):
        engine.add(make_request(token_ids=ids), keep=True)
        (end,) = [output for output in step_all(engine) if isinstance(output.event, EndEvent)]
        assert end.event.code == "numeric_error" and end.event.usage.cached_tokens == 0
        assert end.kept is None
    assert engine.load().kv["cached_blocks"] == 0
    assert engine.load().free_blocks == 16
    assert engine._state is None or engine._state.pool.num_checkpoints == 0


def test_who_was_refused_is_not_suspended_and_ends(engine):
    engine.add(make_request(token_ids=()), keep=True)
    assert engine.suspend("r") is None
    (end,) = step_all(engine)
    assert end.event.code == "bad_request"


def step_all(engine) -> list:
    outputs = []
    while engine.has_work():
        outputs += engine.step()
        engine.check()
    return outputs


def test_a_cancelled_prefill_is_a_hit_for_the_next(engine):
    """field.md 18: interrupting must not throw the work away."""
    engine.add(make_request(token_ids=prompt_of(700)))
    for _ in range(7):
        engine.step()
    engine.cancel("r")
    assert run(engine)["r"][-1].status == "cancelled"
    assert engine.load().free_blocks == 16
    assert cached(say(engine, make_request(token_ids=prompt_of(700)))) == 7 * 64


def test_who_is_preempted_keeps_its_place_and_computes_nothing_twice(engine):
    """field.md 2: "a preempted request loses its place, its KV is evicted, work is redone"."""
    small = sharing_engine(type(engine._model)(FakeClock()), max_batch=1, num_blocks=8)
    first = make_request("first", prompt_of(300), max_tokens=6, sla="batch")
    small.add(first)
    begun = [output.event for _ in range(7) for output in small.step()]
    computed = small._sequences["first"].num_cached
    for index in range(6):  # each would evict what is not held
        small.preempt("first")
        other = make_request("r", prompt_of(900, index), max_tokens=2, sla="realtime")
        small.add(other)
        while small._sequences.keys() != {"first"}:
            begun += [o.event for o in small.step() if o.request_id == "first"]
            small.check()
    assert small._sequences["first"].num_cached >= computed
    count = Computed(small)
    rest = run(small)["first"]
    assert [uncached(event) for event in begun + rest] == judged(first)
    assert count.tokens() == len(rest) - 1


def test_concurrent_eviction_never_brings_another_conversation_back(engine):
    """field.md 29: "RAM cache restores an unrelated conversation under concurrent eviction".

    Six conversations of which memory holds two go on in turns, eight turns each.
    """
    small = sharing_engine(type(engine._model)(FakeClock()), num_blocks=6, max_batch=2)
    talks = {f"t{index}": prompt_of(250, index) for index in range(6)}
    for turn in range(8):
        pairs = [("t0", "t1"), ("t2", "t3"), ("t4", "t5")]
        for pair in pairs if turn % 2 else pairs[::-1]:
            requests = [
                make_request(name, talks[name], max_tokens=4, arrival_ms=turn) for name in pair
            ]
            for request in requests:
                small.add(request)
            events = run(small)
            for request in requests:
                said = [uncached(event) for event in events[request.id]]
                assert said == judged(request)
                talks[request.id] += [*ids_of(said), *prompt_of(7, turn)]
    load = small.load().kv
    assert load["dropped_blocks"] > 0 and load["reused_tokens"] > 0


def test_a_request_that_waits_gets_what_was_computed_meanwhile(engine):
    """One place in the batch: the second looks when its turn comes, not when it is added."""
    small = sharing_engine(type(engine._model)(FakeClock()), max_batch=1)
    ids = prompt_of(300)
    small.add(make_request("a", ids, max_tokens=3))
    small.add(make_request("b", [*ids, 9], max_tokens=3))
    assert cached(run(small)["b"]) >= 256


def test_a_request_that_waits_is_passed_by_none_however_much_is_cached():
    engine = sharing_engine(num_blocks=4)
    say(engine, make_request(token_ids=prompt_of(800), max_tokens=3))
    engine.add(make_request("runs", prompt_of(300, 9), max_tokens=50, arrival_ms=1))
    engine.step()
    engine.add(make_request("big", prompt_of(800), max_tokens=20, arrival_ms=2))
    engine.add(make_request("small", [9, 9], max_tokens=2, arrival_ms=3))
    order = [o.request_id for o in step_all(engine) if isinstance(o.event, EndEvent)]
    assert order == ["runs", "small", "big"] or order == ["runs", "big", "small"]
    assert order.index("runs") == 0


def test_resting_keeps_what_is_cached_for_a_while():
    clock = FakeClock()
    engine = sharing_engine(FakeModel(clock))
    engine._now_ms = clock
    request = make_request(token_ids=prompt_of(300))
    say(engine, request)
    clock.now_ms += FORGET_MS - 1
    engine.rest()
    assert cached(say(engine, request)) == 299
    clock.now_ms += FORGET_MS
    engine.rest()
    assert engine.load().kv["cached_blocks"] == 0
    assert not engine._home.kv.blocks.any()
    assert cached(say(engine, request)) == 0


def test_load_counts_what_was_reused_and_what_was_computed(engine):
    request = make_request(token_ids=prompt_of(512 + 10), max_tokens=2)
    say(engine, request)
    say(engine, request)
    load = engine.load().kv
    assert load["reused_tokens"] + load["computed_prompt_tokens"] == 2 * 522
    assert load["reused_tokens"] >= 512
