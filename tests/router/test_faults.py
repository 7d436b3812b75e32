"""Faults that users of other servers report, each as what must hold here (policy's part of them).

The numbers are those of the list that the names were taken from: priority, SLA, forward progress.
"""

from dataclasses import replace

import pytest
from msgspec.structs import replace as with_fields

from router.burden import has_room
from router.placement import place
from router.reading import HELD_MOST, room_of
from router.replan import Job, replan
from router.turns import Turns
from tests.router.node_pictures import NOW_MS, TABLE, cpu, gpu, wanted


def placed(request, *pools, **options):
    return place(request, None, pools, TABLE, NOW_MS, **options)


def test_fault_1_placing_the_next_request_changes_nothing_about_the_last():
    """Others preempt, in one pass, what the same pass has scheduled: views here are values."""
    view = gpu(4)
    first = placed(wanted("a"), view, cpu())
    placed(wanted("b", "realtime"), replace(view, queue=(wanted("a"),)), cpu())
    assert placed(wanted("a"), view, cpu()) == first
    assert view == gpu(4)


def test_fault_2_what_was_moved_goes_on_and_is_not_moved_about():
    moved = Job(wanted("r", output_tokens=50, kept_tokens=1049), "cpu", True, NOW_MS)
    assert replan([gpu(), cpu(4)], [moved], TABLE, NOW_MS) == []


def test_fault_4_an_urgent_request_goes_to_a_pool_full_of_others_with_memory_to_spare():
    full = gpu(32, sla="batch", places=32, blocks=4000)
    assert placed(wanted(sla="realtime"), full, cpu(32)).kind == "gpu"


def test_fault_5_an_urgent_request_goes_to_a_pool_whose_memory_others_have():
    full = gpu(20, sla="batch", each=60)
    assert full.free_blocks == 0
    assert placed(wanted(sla="realtime"), full, cpu()).kind == "gpu"


def test_fault_6_what_can_never_fit_is_refused_and_blocks_nobody():
    assert placed(wanted(prompt=3_000_000), gpu(), cpu()).forever
    assert placed(wanted(), gpu(), cpu()).kind == "gpu"


@pytest.mark.parametrize("sla", TABLE.names)
@pytest.mark.parametrize("error", [0.1, 1.0, 10.0])
def test_fault_7_an_idle_pool_always_gets_what_waits_however_wrong_its_model_is(sla, error):
    slow = {name: getattr(gpu().cost, name) * error for name in ("fixed_ms", "prefill_ms")}
    idle = replace(gpu(), cost=with_fields(gpu().cost, **slow))
    assert placed(wanted(sla=sla), idle).pool == "gpu"
    assert placed(wanted(sla=sla, prompt=200_000), idle, cpu()).kind != "wait"


def test_fault_8_what_leaves_a_pool_frees_its_place_at_once_for_the_next_decision():
    """One move at a time is enough: the second of two is judged by what the first one left."""
    full = gpu(32, sla="batch", queue=(wanted("now", "realtime"),))
    jobs = [
        Job(wanted(f"b{n}", "batch", output=4000, output_tokens=50, kept_tokens=1049), "gpu", True)
        for n in range(9)
    ]
    assert len(replan([full, cpu(2)], jobs, TABLE, NOW_MS)) == 1


def test_fault_9_turns_go_on_when_nothing_could_be_placed():
    turns = Turns(TABLE)
    waiting = dict.fromkeys(TABLE.names, 1)
    for _ in range(100):
        assert turns.order(waiting)[0] == "realtime"
    for sla in ("realtime",) * 9:
        turns.served(sla)
    assert turns.order(waiting)[0] != "realtime"


def test_fault_10_no_more_is_read_than_a_bound():
    waiting = dict.fromkeys(TABLE.names, 1_000_000)
    room = room_of(waiting, {}, (gpu(), cpu()), TABLE)
    assert all(0 < count <= HELD_MOST for count in room.values())
    held = dict.fromkeys(TABLE.names, HELD_MOST)
    assert set(room_of(waiting, held, (gpu(), cpu()), TABLE).values()) == {0}


def test_a_large_request_is_not_passed_by_small_ones_for_ever():
    """What came later and waits for a place does not keep it from the queue, where it is first."""
    small = tuple(wanted(f"s{n}", prompt=200, output=50) for n in range(5))
    busy = gpu(20, sla="standard", free_blocks=10, queue=small)
    large = wanted("large", prompt=9_000)
    assert placed(large, busy).kind == "wait"
    assert placed(replace(large, arrival_ms=NOW_MS - 1), busy).kind == "gpu"


def test_fault_11_nothing_is_read_while_the_model_loads():
    loading = [replace(view, state="loading", places=0) for view in (gpu(), cpu())]
    assert set(room_of(dict.fromkeys(TABLE.names, 9), {}, loading, TABLE).values()) == {0}
    assert placed(wanted(), *loading).kind == "wait"


def test_fault_12_a_prompt_of_minutes_is_not_ahead_of_a_chat():
    long = wanted("doc", "batch", prompt=150_000)
    busy = gpu(
        1, sla="batch", queue=(long,), prefill_tokens=150_000, prefill_by_class={"batch": 150_000}
    )
    chat = placed(wanted("chat", "realtime", prompt=500), busy)
    assert chat.kind == "gpu" and chat.ttft_ms < TABLE["realtime"].ttft_ms


def test_fault_12_one_class_that_waits_keeps_no_other_from_being_read():
    full = replace(
        gpu(32, sla="standard"), queue=tuple(wanted(f"b{n}", "batch") for n in range(99))
    )
    room = room_of({"realtime": 5, "standard": 0, "batch": 50}, {"batch": 16}, (full,), TABLE)
    assert room == {"realtime": 5, "standard": 0, "batch": 0}


def test_fault_13_a_pool_that_says_nothing_more_is_given_nothing_more():
    silent = replace(gpu(), state="not reporting", places=0)
    assert placed(wanted(), silent, cpu()).pool == "cpu"
    assert not has_room(wanted(), silent, TABLE)
