"""What the scheduler promises over time: pace, order, ageing, shares; and what others' users met.

Faults by their number in the list of what users of other systems report.
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.workers.engine.played import MACHINE, Played
from workers.cost import CostModel
from workers.engine.sequence import TABLE

CLASSES = ["realtime", "standard", "batch"]


def test_fault_1_what_is_in_a_step_is_not_displaced_in_it():
    """A request already scheduled in the step was preempted by a later one."""
    pool = Played(max_batch=2)
    for name in "ab":
        pool.add(name, max_tokens=30, sla="batch")
    pool.step()
    for name in "cd":
        pool.add(name, sla="realtime")
    assert set(pool.step()) == {"c", "d"}
    assert [s.id for s in pool.scheduler.displaced] == ["a", "b"]


def test_fault_3_nobody_misses_a_step_because_another_gave_way():
    pool = Played(max_batch=3)
    for name in "abc":
        pool.add(name, max_tokens=30, sla="batch")
    pool.step()
    pool.add("now", sla="realtime")
    assert set(pool.step()) == {"a", "b", "now"}


def test_fault_4_a_waiting_urgent_one_displaces_at_once_though_memory_is_free():
    pool = Played(max_batch=1)
    pool.add("slow", 4000, 500, sla="batch")
    pool.step()
    pool.add("now", 50, 3, sla="realtime")
    assert pool.step() == {"now": 50}
    assert [pool.step(), pool.step()] == [{"now": 1}, {"now": 1}]
    assert set(pool.step()) == {"slow"}


def test_fault_6_what_can_never_fit_is_known_before_it_waits():
    pool = Played(num_blocks=4)
    sequence = pool.add("huge", 100, 5000)
    assert not pool.scheduler.can_ever_run(sequence)


@pytest.mark.parametrize("num_blocks", [4, 5, 8])
def test_fault_7_while_anything_can_run_something_does(num_blocks):
    """Running 0, waiting N, for ever."""
    pool = Played(num_blocks=num_blocks)
    for index in range(12):
        pool.add(f"s{index}", 300 + 60 * index, 20, CLASSES[index % 3])
    while pool.here:
        assert pool.turn() or pool.scheduler.suspended


def test_fault_8_memory_that_is_on_its_way_displaces_nobody_else():
    """Blocks of preempted work were freed a step late; a loop preempted the whole batch."""
    pool = Played(num_blocks=6)
    for name in "abc":
        pool.add(name, 300, 100, sla="batch")
    pool.step()
    pool.add("now", 300, 100, sla="realtime")
    [victim] = pool.park()
    pool.memory.pool.allocate(2)  # they are being written
    assert pool.park(num_promised=2) == []
    assert victim.id == "c"


def test_fault_9_a_full_memory_in_which_nobody_computes_is_no_livelock():
    """A fairness counter was not advanced by an empty batch."""
    pool = Played(num_blocks=4, max_batch=2)
    for tenant in ("anna", "bert"):
        for index in range(3):
            pool.add(f"{tenant}{index}", 600, 40, tenant=tenant)
    pool.run()
    assert len(pool.end_ms) == 6


def test_fault_12_a_long_prefill_blocks_no_chat_and_slows_no_decode_beyond_its_promise():
    pool = Played(max_batch=4, num_blocks=2000, max_step_tokens=512)
    pool.add("talk", 20, 200, sla="realtime")
    pool.step()
    pool.add("book", 100_000, 5, sla="batch")
    for _ in range(50):
        pool.turn()
    begin_ms = pool.now_ms
    pool.add("chat", 40, 5, sla="realtime")
    while "chat" not in pool.first_ms:
        pool.turn()
    assert pool.first_ms["chat"] - begin_ms < 300
    assert max(pool.gaps["talk"]) <= 100
    assert pool.computed["book"] > 2000, "and the book goes on"


def test_less_urgent_decodes_sit_out_where_they_would_break_the_pace_of_urgent_ones():
    machine = CostModel(fixed_ms=20, decode_ms=10)
    pool = Played(max_batch=16, told=machine)
    pool.add("talk", 5, 100, sla="realtime")
    for index in range(15):
        pool.add(f"b{index}", 5, 100, sla="batch")
    for _ in range(5):
        pool.step()
    sizes = [pool.step() for _ in range(30)]
    assert all("talk" in step for step in sizes)
    assert max(map(len, sizes)) < 16
    served = {name for step in sizes for name in step}
    assert len(served) == 16, "each has its turn"


def test_a_class_that_got_nothing_for_its_patience_gets_a_guarded_turn():
    """A flood of the most urgent class that would take everything, for ever."""
    pool = Played(max_batch=2)
    pool.add("patient", 20, 400, sla="batch")
    begin_ms, number = pool.now_ms, 0
    while "patient" not in pool.end_ms:
        if len([s for s in pool.here if s.level == 0]) < 4:
            number += 1
            pool.add(f"now{number}", 50, 40, sla="realtime")
        pool.turn()
        assert pool.now_ms - begin_ms < 600_000, "it starves"
    share = sum(pool.computed[n] for n in pool.computed if n != "patient")
    assert share > 5 * pool.computed["patient"], "and the urgent class has most of it"


@pytest.mark.parametrize(("name", "runs"), [("realtime", {"a", "b"}), ("batch", {"a", "now"})])
def test_a_running_one_is_ranked_by_its_new_class_from_the_next_step_on(name, runs):
    pool = Played(max_batch=2)
    other = pool.add("a", max_tokens=30)
    changed = pool.add("b", max_tokens=30)
    pool.step()
    pool.add("now", sla="standard" if name == "batch" else "realtime")
    pool.scheduler.reclass(changed, name, TABLE)
    pool.scheduler.reclass(other, "realtime", TABLE)
    assert set(pool.step()) == runs


@pytest.mark.parametrize("place", ["waiting", "displaced", "suspended"])
def test_whoever_waits_changes_its_class_where_it_is(place):
    pool = Played(max_batch=1, num_blocks=4)
    slow = pool.add("slow", 600, 30, sla="batch")
    if place != "waiting":
        pool.step()
    pool.add("now", 40 if place == "displaced" else 800, 30, sla="realtime")
    pool.park()
    pool.scheduler.reclass(slow, "realtime", TABLE)
    pool.scheduler.check()
    assert slow.level == 0 and slow in pool.here
    pool.run()


def test_a_promoted_one_is_due_as_if_it_had_come_in_its_class():
    """By its own deadline less the time that it takes, not by the deadline itself."""
    pool = Played()
    deadline_ms = int(pool.now_ms) + 20_000
    born = pool.add("born", 10, 100, deadline_ms=deadline_ms)
    promoted = pool.add("promoted", 10, 100, sla="batch", deadline_ms=deadline_ms)
    pool.scheduler.reclass(promoted, "standard", TABLE)
    assert promoted.due_ms == born.due_ms < deadline_ms
    assert promoted.rank[:2] == born.rank[:2]


def test_within_a_class_who_is_due_first_goes_first():
    pool = Played(max_batch=1)
    pool.add("first", 10, 5)
    pool.step()
    pool.add("later", 10, 5)
    pool.add("soon", 10, 5, deadline_ms=int(pool.now_ms) + 2000)
    pool.run()
    assert pool.end_ms["soon"] < pool.end_ms["later"]


def test_tenants_share_a_class_however_many_requests_each_sends():
    """Both always have something waiting; what they get differs by no more than a batch."""
    pool = Played(max_batch=4)
    for index in range(60):
        pool.add(f"many{index}", 40, 20, tenant="many")
    for index in range(15):
        pool.add(f"few{index}", 40, 20, tenant="few")
    while any(s.id.startswith("few") for s in pool.scheduler.waiting):
        pool.turn()
        got = [sum(n for k, n in pool.computed.items() if k.startswith(t)) for t in ("many", "few")]
        assert abs(got[0] - got[1]) <= 4 * 60


def test_a_tenant_that_was_away_saves_nothing_up():
    pool = Played(max_batch=1)
    for index in range(10):
        pool.add(f"a{index}", 40, 20, tenant="anna")
    for _ in range(60):
        pool.turn()
    for index in range(10):
        pool.add(f"b{index}", 40, 20, tenant="bert")
    while pool.here:
        pool.turn()
    order = sorted((ms, name) for name, ms in pool.end_ms.items())
    late = [name[0] for _, name in order[4:16]]
    assert 4 <= late.count("a") <= 8, order


@pytest.mark.parametrize("factor", [0.1, 10])
def test_a_cost_model_that_is_wrong_by_ten_degrades_and_locks_nothing(factor):
    told = CostModel(
        fixed_ms=MACHINE.fixed_ms * factor,
        decode_ms=MACHINE.decode_ms * factor,
        prefill_ms=MACHINE.prefill_ms * factor,
    )
    pool = Played(told=told, num_blocks=12)
    for index in range(20):
        pool.add(f"s{index}", 200, 30, CLASSES[index % 3])
    pool.run()
    assert len(pool.end_ms) == 20


ARRIVAL = st.tuples(
    st.integers(0, 12),  # steps before it
    st.integers(1, 900),
    st.integers(1, 120),
    st.sampled_from(CLASSES),
    st.sampled_from(["anna", "bert", "carl"]),
    st.none() | st.integers(0, 60),  # steps until it is cancelled
)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(ARRIVAL, min_size=1, max_size=16),
    st.integers(4, 12),
    st.integers(1, 5),
    st.randoms(use_true_random=False),
)
def test_whatever_arrives_all_that_is_promised_holds(arrivals, num_blocks, max_batch, chance):
    """Budgets, order and one place for each at every step; nothing computed twice; all end."""
    pool = Played(num_blocks=num_blocks, max_batch=max_batch, max_step_tokens=64)
    cancels: dict[int, list] = {}
    turns = 0

    def turn():
        nonlocal turns
        turns += 1
        for sequence in cancels.pop(turns, []):
            if sequence in pool.here:
                pool.scheduler.remove(sequence)
        pool.park()
        for sequence in pool.scheduler.suspended:
            if sequence.is_away and chance.random() < 0.5:
                pool.scheduler.written(sequence)
        back = pool.scheduler.to_resume()
        if back is not None:
            pool.scheduler.resume(back)
        pool.step()

    for number, (steps, prompt, output, sla, tenant, cancelled) in enumerate(arrivals):
        for _ in range(steps):
            turn()
        sequence = pool.add(f"r{number}", prompt, output, sla, tenant)
        if cancelled is not None:
            cancels.setdefault(turns + 1 + cancelled, []).append(sequence)
    for _ in range(20_000):
        if not pool.here:
            break
        turn()
    assert pool.here == []
    assert pool.memory.pool.num_free == num_blocks
