"""What has been placed is placed anew: lost pools, queues, promises at risk, idle processors."""

from dataclasses import replace

import pytest

from router.placement import Switches
from router.replan import MOVED_LATELY_MS, QUEUED_AT_ONCE, RUNNING_AT_ONCE, Job, replan
from tests.router.node_pictures import NOW_MS, TABLE, cpu, gpu, wanted

LONG = {"prompt": 1000, "output": 4000, "output_tokens": 50, "kept_tokens": 1049}


def moves(pools, jobs, **options):
    return replan(pools, jobs, TABLE, NOW_MS, **options)


def running(name="r", pool="cpu", **fields):
    return Job(wanted(name, **{**LONG, **fields}), pool, running=True)


def lost(view, state="not reporting"):
    return replace(view, state=state)


def test_what_waited_for_a_lost_pool_goes_to_another_one_and_says_why():
    job = Job(wanted("a"), "gpu")
    [move] = moves([lost(gpu(queue=(job.wanted,))), cpu()], [job])
    assert (move.request_id, move.to_pool) == ("a", "cpu")
    assert move.reason == "cpu: gpu was to run it and is not reporting"


def test_costs_need_not_be_known_for_that():
    plain = replace(cpu(), cost=None)
    assert len(moves([lost(gpu(), "absent"), plain], [Job(wanted(), "gpu")])) == 1


def test_what_no_other_pool_holds_waits_for_the_lost_one():
    big = Job(wanted(prompt=400_000), "cpu")
    assert moves([gpu(), lost(cpu())], [big]) == []


def test_what_a_lost_pool_ran_is_its_leases_to_give_back():
    assert moves([lost(gpu()), cpu()], [running(pool="gpu")]) == []


def test_an_idle_pool_takes_what_a_busy_one_keeps_waiting():
    queue = tuple(wanted(f"q{n}", "batch", kept_tokens=990) for n in range(20))
    busy = gpu(32, sla="batch", queue=queue)
    found = moves([busy, cpu()], [Job(one, "gpu") for one in queue])
    assert 1 <= len(found) <= QUEUED_AT_ONCE
    assert {move.to_pool for move in found} == {"cpu"}
    assert "sooner than gpu" in found[0].reason


def test_who_has_waited_longest_is_moved_first():
    queue = tuple(
        replace(wanted(f"q{n}", "batch", kept_tokens=990), arrival_ms=NOW_MS - n) for n in range(20)
    )
    busy = gpu(32, sla="standard", queue=queue)
    found = [move.request_id for move in moves([busy, cpu()], [Job(one, "gpu") for one in queue])]
    assert len(found) > 1
    assert found == sorted(found, key=lambda name: -int(name[1:]))


def test_what_runs_slowly_comes_to_an_idle_fast_pool():
    [move] = moves([gpu(), cpu(4)], [running()])
    assert move.to_pool == "gpu" and "has room, and ends it" in move.reason


def test_few_running_requests_move_at_a_time():
    jobs = [running(f"r{n}") for n in range(20)]
    assert len(moves([gpu(), cpu(20)], jobs)) == RUNNING_AT_ONCE


def test_a_full_fast_pool_asks_nobody_to_come():
    assert moves([gpu(20), cpu(4)], [running()]) == []


def test_what_is_nearly_done_stays():
    assert moves([gpu(), cpu(4)], [running(output=55)]) == []


def test_a_deadline_at_risk_moves_what_runs_also_to_a_busy_pool():
    late = running(sla="batch", deadline_ms=NOW_MS + 20_000)
    [move] = moves([gpu(20, sla="standard"), cpu(20)], [late])
    assert move.to_pool == "gpu" and "at risk in cpu" in move.reason


def test_less_urgent_work_leaves_a_full_fast_pool_when_urgent_work_waits():
    full = gpu(32, sla="batch", queue=(wanted("now", "realtime"),))
    [move] = moves([full, cpu(2)], [running("b", "gpu", sla="batch")])
    assert move.to_pool == "cpu" and "more urgent work waits for gpu" in move.reason


def test_nothing_moves_twice_within_seconds():
    just = replace(running(), moved_ms=NOW_MS - MOVED_LATELY_MS + 1)
    assert moves([gpu(), cpu(4)], [just]) == []
    assert moves([gpu(), cpu(4)], [replace(just, moved_ms=NOW_MS - MOVED_LATELY_MS)])


@pytest.mark.parametrize("switches", [Switches(promotion=False), Switches(tiers=False)])
def test_running_requests_stay_without_promotion_or_files(switches):
    assert moves([gpu(), cpu(4)], [running()], switches=switches) == []


def test_one_pool_has_nowhere_to_move_to():
    assert moves([gpu(), lost(cpu(), "absent")], [running(pool="gpu"), Job(wanted(), "gpu")]) == []


def test_a_promoted_request_is_judged_by_its_new_class():
    """It waits in the CPU's queue behind others; as realtime it is begun at once on the GPU."""
    ahead = tuple(wanted(f"q{n}", "realtime") for n in range(4))
    job = Job(wanted("p", "realtime"), "cpu")
    [move] = moves([gpu(4), cpu(4, queue=(*ahead, job.wanted))], [job])
    assert (move.request_id, move.to_pool) == ("p", "gpu")
