"""Whatever comes, nothing is lost, doubled, starved or over budget; and a check that can fail."""

from dataclasses import replace

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.placement import Plan
from router.simulator.capacity import play
from router.simulator.clock import Clock
from router.simulator.hardware import load
from router.simulator.invariants import Broken, Invariants
from router.simulator.job import FINISHED, REFUSED
from router.simulator.systems import NAMES, build, variants
from router.simulator.workload import load_workloads, wishes
from workers.sla import SlaTable

WORKLOADS, TABLE = load_workloads()
HARDWARE = load("published")
OURS = variants("gpu+cpu")[0]
# patience that a short run can use up
HASTY = SlaTable.of(
    {
        "standard": {"handicap_ms": 5_000},
        "batch": {"handicap_ms": 20_000, "deadline_ms": 600_000},
    }
)


def small(num_blocks: int, max_batch: int):
    """The published node with little memory and few places, so that both are short."""
    pools = {
        name: replace(pool, num_blocks=num_blocks, max_batch=max_batch, state_slots=2 * max_batch)
        for name, pool in HARDWARE.pools.items()
    }
    return replace(HARDWARE, pools=pools)


@settings(max_examples=8, deadline=None)
@given(
    name=st.sampled_from(["chat", "agents", "documents", "burst"]),
    system=st.sampled_from(NAMES),
    rate=st.floats(0.1, 2.0),
    seed=st.integers(0, 10_000),
    max_batch=st.integers(1, 8),
    blocks=st.sampled_from([140, 200, 600]),
)
def test_whatever_comes_every_invariant_holds(name, system, rate, seed, max_batch, blocks):
    requests = wishes(WORKLOADS[name], 32768, rate, seed, horizon_s=15)
    node = small(blocks, max_batch)
    one = variants(system)[seed % len(variants(system))]
    outcome = play(one, node, HASTY, requests, 15, is_patient=True, is_checked=True)
    assert all(job.state in (FINISHED, REFUSED) for job in outcome.jobs)
    assert len({job.id for job in outcome.jobs}) == len(outcome.jobs)
    if one.switches is not None:  # a baseline's fixed rule may give one core a day's work
        assert len(outcome.jobs) >= len(requests)


def test_whoever_comes_late_may_wait_long_where_the_first_come_is_the_first_served():
    """One place, and two minutes of work before the first batch: no promise of this baseline."""
    requests = wishes(WORKLOADS["chat"], 32768, 2.0, 0, horizon_s=15)
    one = variants("fifo-gpu")[0]
    outcome = play(one, small(140, 1), HASTY, requests, 15, is_patient=True, is_checked=True)
    assert all(job.state in (FINISHED, REFUSED) for job in outcome.jobs)


def test_whoever_waits_for_the_only_place_does_not_starve():
    """Three minutes of one chat on the CPU, where nothing is moved to the GPU."""
    requests = wishes(WORKLOADS["chat"], 32768, 0.8769286061296899, 4114, horizon_s=15)
    one = variants("without-routing")[0]
    outcome = play(one, small(140, 1), HASTY, requests, 15, is_patient=True, is_checked=True)
    assert all(job.state in (FINISHED, REFUSED) for job in outcome.jobs)


def test_a_long_run_of_steps_starves_nobody():
    """Two minutes of one session's decodes on the CPU are one event."""
    requests = wishes(WORKLOADS["agents"], 32768, 1.965945611323215, 3268, horizon_s=15)
    one = variants("without-handoff")[0]
    outcome = play(one, small(140, 8), HASTY, requests, 15, is_patient=True, is_checked=True)
    assert all(job.state in (FINISHED, REFUSED) for job in outcome.jobs)


def run(node, until_ms: float, **how) -> Invariants:
    invariants = Invariants(node, **how)
    node.on_end = invariants.ended
    node.clock.run(until_ms, watch=invariants.check)
    return invariants


@pytest.mark.parametrize("lost", ["gpu", "cpu"])
def test_the_work_of_a_lost_pool_ends_on_the_other(lost):
    requests = wishes(WORKLOADS["burst"], 4096, 0.5, seed=2, horizon_s=30)
    node = build(OURS, HARDWARE, TABLE, Clock(), has_door=False)
    node.expect(requests)
    node.clock.at(20_000, lambda: node.lose(lost))
    run(node, 4_000_000, loses=True)
    assert not node.jobs and node.num_ended == len(requests)


@pytest.mark.parametrize("factor", [0.1, 10.0])
def test_with_costs_that_are_wrong_by_ten_promises_suffer_and_nothing_hangs(factor):
    numbers = ("fixed_ms", "decode_ms", "prefill_ms", "context_us", "prefill_context_us")
    told = {
        name: msgspec.structs.replace(
            pool.cost, **{number: factor * getattr(pool.cost, number) for number in numbers}
        )
        for name, pool in HARDWARE.pools.items()
    }
    requests = wishes(WORKLOADS["chat"], 32768, 0.5, seed=4, horizon_s=60)
    node = build(OURS, HARDWARE, TABLE, Clock(), told=told)
    node.expect(requests)
    run(node, 4_000_000)
    assert not node.jobs and node.num_ended == len(requests)


def test_a_request_that_no_pool_can_hold_is_refused_and_blocks_nobody():
    requests = wishes(WORKLOADS["chat"], 32768, 0.5, seed=1, horizon_s=20)
    [first, *others] = requests
    huge = replace(first, max_tokens=100_000_000)
    node = build(OURS, HARDWARE, TABLE, Clock())
    ended = []
    node.expect([huge, *others])
    node.on_end = ended.append
    node.clock.run(4_000_000)
    assert [job.id for job in ended if job.state == REFUSED] == [huge.id]
    assert len(ended) == len(requests)


def broken_by(change) -> None:
    node = build(OURS, HARDWARE, TABLE, Clock(), has_door=False)
    node.expect(wishes(WORKLOADS["chat"], 8192, 1.0, seed=1, horizon_s=20))
    node.clock.at(10_000, lambda: change(node))
    run(node, 60_000)


def test_a_lost_request_is_noticed():
    def lose(node):
        next(iter(node.pools.values())).claimed.popitem()

    with pytest.raises((Broken, KeyError)):
        broken_by(lose)


def test_a_doubled_request_is_noticed():
    with pytest.raises(Broken, match="two places"):
        broken_by(lambda node: node.held.append(next(iter(node.jobs.values()))))


def test_work_done_twice_is_noticed():
    def again(node):
        next(iter(node.pools["gpu"].claimed.values())).computed_in_all += 1_000_000

    with pytest.raises(Broken, match="computed twice"):
        broken_by(again)


class Starving:
    """Ours, but for batch, which it lets wait."""

    def __init__(self, policy):
        self.policy = policy

    def place(self, wanted, home, pools, now_ms, backlog):
        if wanted.sla == "batch":
            return Plan("wait", "", "for ever")
        return self.policy.place(wanted, home, pools, now_ms, backlog)

    def replan(self, pools, jobs, now_ms):
        return self.policy.replan(pools, jobs, now_ms)


def test_a_starved_class_is_noticed():
    node = build(OURS, HARDWARE, HASTY, Clock(), has_door=False)
    node.policy = Starving(node.policy)
    node.expect(wishes(WORKLOADS["chat"], 8192, 0.2, seed=1, horizon_s=200))
    with pytest.raises(Broken, match="starves: batch"):
        run(node, 1_000_000)
