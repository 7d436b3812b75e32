"""Who runs: decodes always, prompts within the budget, in order of rank, with memory to the end."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels.ops import BLOCK_TOKENS
from kv_tier.block_pool import BlockPool
from kv_tier.state_pool import StatePool
from tests.workers.engine.fake import CONTEXT, END_ID, FakeText, make_request
from workers.engine.cost import StepCost, Work
from workers.engine.memory import Memory
from workers.engine.scheduler import Scheduler
from workers.engine.sequence import Sequence
from workers.text.stream import TextStream


def make_scheduler(
    num_blocks: int = 16,
    max_batch: int = 4,
    max_step_tokens: int = 64,
    states: StatePool | None = None,
) -> Scheduler:
    cost = StepCost()
    cost.observe(0, Work(1))  # steps cost nothing: only max_step_tokens limits
    return Scheduler(
        Memory(BlockPool(num_blocks), states),
        cost,
        max_batch=max_batch,
        max_step_tokens=max_step_tokens,
        budget_ms=50,
    )


def make_sequence(request_id: str, num_prompt: int = 10, **wanted) -> Sequence:
    request = make_request(request_id, range(5, 5 + num_prompt), **wanted)
    return Sequence(request, TextStream(FakeText(), ()), 0, CONTEXT)


def check(scheduler: Scheduler) -> None:
    scheduler.check()
    scheduler.memory.check(scheduler.running + scheduler.waiting)


def play(scheduler: Scheduler, now_ms: int = 1_000_000) -> dict[str, int]:
    """Run one step as an engine would; how many tokens of each were in it."""
    parts = scheduler.schedule(now_ms)
    scheduler.check_order()
    assert sum(part.num_tokens for part in parts) <= scheduler.max_step_tokens
    seen = {part.sequence.id: part.num_tokens for part in parts}
    for part in parts:
        reaches_end, sequence = part.reaches_end, part.sequence
        sequence.num_cached = part.end
        if reaches_end:
            sequence.append(50, frozenset({END_ID}))
            if sequence.finish_reason is not None:
                scheduler.remove(sequence)
    check(scheduler)
    return seen


def test_a_long_prompt_is_cut_to_the_step():
    scheduler = make_scheduler()
    scheduler.add(make_sequence("a", 150))
    assert [play(scheduler) for _ in range(4)] == [{"a": 64}, {"a": 64}, {"a": 22}, {"a": 1}]


def test_decodes_come_first_and_prefill_takes_the_rest():
    scheduler = make_scheduler()
    scheduler.add(make_sequence("a"))
    play(scheduler)
    scheduler.add(make_sequence("b", 100))
    assert play(scheduler) == {"a": 1, "b": 63}
    assert play(scheduler) == {"a": 1, "b": 37}
    assert play(scheduler) == {"a": 1, "b": 1}


def test_several_short_prompts_share_a_step():
    scheduler = make_scheduler()
    for name in "abc":
        scheduler.add(make_sequence(name, 30))
    assert play(scheduler) == {"a": 30, "b": 30, "c": 4}


def test_a_flood_of_prompts_never_stops_decodes():
    scheduler = make_scheduler(max_batch=6)
    talkers = ["t0", "t1", "t2", "t3"]
    for name in talkers:
        scheduler.add(make_sequence(name, max_tokens=200))
    play(scheduler)
    for i in range(50):
        scheduler.add(make_sequence(f"flood{i}", 500, max_tokens=1))
    for _ in range(150):
        step = play(scheduler)
        assert [step[name] for name in talkers] == [1, 1, 1, 1]
        assert sum(step.values()) == 64


def test_a_slow_machine_gets_small_chunks_and_still_decodes():
    scheduler = make_scheduler()
    for _ in range(50):
        scheduler.cost.observe(640, Work(0, 0, 64))
    scheduler.add(make_sequence("a", 5))
    play(scheduler)
    scheduler.add(make_sequence("b", 60))
    assert play(scheduler) == {"a": 1, "b": 16}


def test_a_fixed_chunk_is_kept_whatever_else_runs():
    scheduler = make_scheduler()
    scheduler.chunk = 7
    scheduler.add(make_sequence("a", 8))
    assert [play(scheduler) for _ in range(2)] == [{"a": 7}, {"a": 1}]
    scheduler.add(make_sequence("b", 15))
    assert [play(scheduler)["b"] for _ in range(3)] == [7, 7, 1]


def test_blocks_are_reserved_to_the_longest_end():
    scheduler = make_scheduler()
    scheduler.add(make_sequence("a", 10, max_tokens=BLOCK_TOKENS))
    play(scheduler)
    assert len(scheduler.running[0].blocks) == 2
    assert scheduler.memory.pool.num_free == 14


def test_the_context_bounds_what_is_reserved():
    scheduler = make_scheduler()
    sequence = make_sequence("a", 10, max_tokens=10**9)
    assert sequence.num_blocks_wanted == CONTEXT // BLOCK_TOKENS
    assert scheduler.can_ever_run(sequence)


@pytest.mark.parametrize(
    ("num_prompt", "max_tokens", "num_blocks", "fits"),
    [
        (10, 246, 1, True),
        (10, 247, 1, False),
        (10, 247, 2, True),
        (CONTEXT - 1, 5, 4, True),
        (CONTEXT, 5, 99, False),
    ],
)
def test_what_can_ever_run(num_prompt, max_tokens, num_blocks, fits):
    scheduler = make_scheduler(num_blocks)
    assert scheduler.can_ever_run(make_sequence("a", num_prompt, max_tokens=max_tokens)) == fits


def test_a_big_one_at_the_head_is_not_passed_by_small_ones():
    scheduler = make_scheduler(num_blocks=4)
    scheduler.add(make_sequence("first", max_tokens=5))
    play(scheduler)
    scheduler.add(make_sequence("big", 900))
    steps = 0
    while not any(s.id == "big" for s in scheduler.running):
        scheduler.add(make_sequence(f"small{steps}", 5, max_tokens=5))
        play(scheduler)
        steps += 1
        assert steps < 10, "the big one starves"
    assert [s.id for s in scheduler.running] == ["big"]


def test_urgency_goes_before_arrival():
    scheduler = make_scheduler(max_batch=1)
    scheduler.add(make_sequence("batch", sla="batch", arrival_ms=1_000_000))
    scheduler.add(make_sequence("standard", sla="standard", arrival_ms=1_000_500))
    scheduler.add(make_sequence("soon", sla="realtime", arrival_ms=1_001_000))
    scheduler.add(make_sequence("late", sla="realtime", arrival_ms=1_200_000))
    assert [s.id for s in scheduler.waiting] == ["soon", "late", "standard", "batch"]


def test_a_more_urgent_prompt_is_prefilled_first():
    scheduler = make_scheduler()
    scheduler.add(make_sequence("batch", 200, sla="batch"))
    play(scheduler)
    scheduler.add(make_sequence("realtime", 50, sla="realtime"))
    assert play(scheduler) == {"realtime": 50, "batch": 14}


def test_removing_a_waiting_one_frees_nothing_twice():
    scheduler = make_scheduler(max_batch=1)
    scheduler.add(make_sequence("a"))
    waiting = make_sequence("b")
    scheduler.add(waiting)
    play(scheduler)
    scheduler.remove(waiting)
    check(scheduler)
    assert (len(scheduler.running), len(scheduler.waiting)) == (1, 0)


def test_a_running_one_holds_a_slot_of_state():
    states = StatePool(3)
    scheduler = make_scheduler(states=states)
    for name in "abcd":
        scheduler.add(make_sequence(name))
    play(scheduler)
    assert [s.id for s in scheduler.running] == ["a", "b", "c"]
    assert len({s.state_slot for s in scheduler.running}) == states.num_held == 3
    assert scheduler.waiting[0].state_slot is None
    scheduler.remove(scheduler.running[0])
    play(scheduler)
    assert [s.id for s in scheduler.running] == ["b", "c", "d"]


def test_a_model_without_state_takes_no_slots():
    scheduler = make_scheduler()
    scheduler.add(make_sequence("a"))
    play(scheduler)
    assert scheduler.running[0].state_slot is None


def test_a_preempted_one_keeps_its_memory_and_goes_on():
    states = StatePool(4)
    scheduler = make_scheduler(max_batch=1, states=states)
    slow = make_sequence("slow", 100, sla="batch")
    scheduler.add(slow)
    play(scheduler)
    held = (list(slow.blocks), slow.state_slot, slow.num_cached)
    scheduler.add(make_sequence("quick", max_tokens=2, sla="realtime"))
    scheduler.preempt(slow)
    assert play(scheduler) == {"quick": 10}
    assert (slow.blocks, slow.state_slot, slow.num_cached) == held
    assert play(scheduler) == {"quick": 1}
    assert play(scheduler) == {"slow": 36}


def test_a_preempted_one_goes_on_while_the_head_waits_for_its_memory():
    """Else both would wait for ever: the head for blocks, their holder for its turn."""
    scheduler = make_scheduler(num_blocks=4, max_batch=2)
    holder = make_sequence("holder", sla="batch", max_tokens=4)
    scheduler.add(holder)
    play(scheduler)
    scheduler.add(make_sequence("big", 900, sla="realtime"))
    scheduler.preempt(holder)
    assert [play(scheduler) for _ in range(3)] == [{"holder": 1}] * 3
    assert play(scheduler) == {"big": 64}


def test_a_preempted_one_that_is_removed_gives_its_memory_back():
    states = StatePool(1)
    scheduler = make_scheduler(states=states)
    sequence = make_sequence("a")
    scheduler.add(sequence)
    play(scheduler)
    scheduler.preempt(sequence)
    check(scheduler)
    scheduler.remove(sequence)
    check(scheduler)
    assert (scheduler.memory.pool.num_free, states.num_held) == (16, 0)


CASE = st.tuples(
    st.integers(1, 700), st.integers(1, 300), st.sampled_from(["realtime", "standard", "batch"])
)


@given(
    st.lists(CASE, min_size=1, max_size=12),
    st.integers(4, 8),
    st.integers(1, 5),
    st.integers(5, 90),
    st.integers(0, 6),
    st.integers(2, 9),
)
def test_everything_that_fits_ends_and_all_memory_returns(
    cases, num_blocks, max_batch, step_tokens, num_slots, preempt_every
):
    """With 0 slots the model has no state. Every so-maniest step somebody is preempted before."""
    states = StatePool(num_slots) if num_slots else None
    scheduler = make_scheduler(num_blocks, max_batch, step_tokens, states)
    for index, (num_prompt, max_tokens, sla) in enumerate(cases):
        scheduler.add(make_sequence(f"s{index}", num_prompt, max_tokens=max_tokens, sla=sla))
    bound = sum(prompt + max_tokens for prompt, max_tokens, _ in cases)
    for step in range(bound):
        if not (scheduler.running or scheduler.waiting):
            break
        if scheduler.running and step % preempt_every == 0:
            scheduler.preempt(scheduler.running[step % len(scheduler.running)])
            check(scheduler)
        assert play(scheduler)
    assert not (scheduler.running or scheduler.waiting)
    assert scheduler.memory.pool.num_free == num_blocks
    assert states is None or states.num_held == 0
