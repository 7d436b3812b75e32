"""Capacity is the highest rate that is met; overload hurts batch first, and is over when it is."""

from dataclasses import replace

import pytest

from router.simulator.capacity import (
    TOLERANCE,
    Effort,
    Outcome,
    allowed,
    best_of,
    drawn,
    highest,
    interval,
    play,
)
from router.simulator.hardware import load
from router.simulator.job import FINISHED, REFUSED
from router.simulator.study import Load, best_baseline, study
from router.simulator.systems import NAMES, build, variants
from router.simulator.workload import load_workloads, wishes

WORKLOADS, TABLE = load_workloads()
HARDWARE = load("published")
OURS = variants("gpu+cpu")[0]


@pytest.mark.parametrize("limit", [0.004, 0.7, 33.0])
@pytest.mark.parametrize("guess", [0.01, 1.0, 50.0])
def test_bisection_finds_the_highest_rate_that_is_met(limit, guess):
    found = highest(lambda rate: rate <= limit, guess)
    assert limit / (1 + TOLERANCE) <= found <= limit


def test_what_is_never_met_is_nothing_and_what_is_no_better_is_left():
    assert highest(lambda rate: False, 1.0) == 0.0
    assert highest(lambda rate: rate <= 0.7, 1.0, above=0.7) == 0.0


def test_an_interval_holds_its_mean_and_is_a_point_for_one_seed():
    low, high = interval([1.0, 1.2, 1.4, 1.1])
    assert 1.0 <= low <= 1.175 <= high <= 1.4
    assert interval([2.0]) == (2.0, 2.0)


def test_misses_that_an_attainment_allows():
    assert (allowed(0.99, 500), allowed(0.99, 20), allowed(1.0, 500)) == (5, 1, 0)


def test_a_queue_that_grows_is_no_capacity():
    outcome = Outcome()
    outcome.judged.update(batch=200)
    outcome.met.update(batch=200)
    assert outcome.is_good(TABLE)
    outcome.growth.update(batch=20)
    assert not outcome.is_good(TABLE)


def test_without_a_gpu_that_is_full_the_cpu_brings_nothing_and_hurts_nobody():
    source, effort = drawn(WORKLOADS["short"], 1024), Effort(1, 60.0, 60)
    gpu, _ = best_of(variants("gpu"), HARDWARE, TABLE, source, effort, 0, 2.0)
    both, _ = best_of(variants("gpu+cpu"), HARDWARE, TABLE, source, effort, 0, gpu)
    assert both == pytest.approx(gpu, rel=2 * TOLERANCE)


@pytest.mark.parametrize("rate", [1.0, 1.2])
@pytest.mark.parametrize("seed", [0, 1])
def test_what_the_cpu_takes_over_breaks_no_promise_that_the_gpu_alone_would_keep(rate, seed):
    """Where nearly all is prefill, and the GPU is as full as can be."""
    missed = {}
    for name in ("gpu", "gpu+cpu"):
        requests = wishes(WORKLOADS["code"], 8192, rate, seed, horizon_s=150)
        outcome = play(variants(name)[0], HARDWARE, TABLE, requests, 150, is_patient=True)
        missed[name] = sum(outcome.judged.values()) - sum(outcome.met.values())
    assert missed["gpu+cpu"] <= missed["gpu"]


def test_a_study_has_a_row_for_each_case_in_order():
    one = Load("short", HARDWARE, (512, 1024), WORKLOADS["short"])
    seen = []
    rows = study(
        ["gpu", "fifo-gpu"],
        [one],
        TABLE,
        Effort(1, 20.0, 20),
        processes=1,
        tell=lambda *told: seen.append(told),
    )
    assert [(row.context, row.system) for row in rows] == [
        *((512, "gpu"), (512, "fifo-gpu")),
        *((1024, "gpu"), (1024, "fifo-gpu")),
    ]
    assert [done for _, done, _ in seen] == [1, 2, 3, 4]
    best = best_baseline(rows, "short", 512)
    assert best is not None and best.system == "fifo-gpu"


def test_every_system_can_be_built():
    for name in NAMES:
        for system in variants(name):
            assert set(build_pools(system)) <= {"gpu", "cpu"}


def build_pools(system):
    from router.simulator.clock import Clock

    return build(system, HARDWARE, TABLE, Clock()).pools


def test_a_pipeline_has_the_memory_of_both_nodes_and_the_weights_once():
    pools = build_pools(variants("pp2")[0])
    one, two = HARDWARE.pools["gpu"], pools["gpu"].hardware
    freed = one.weight_bytes // one.block_bytes
    assert two.num_blocks == pytest.approx(2 * one.num_blocks + freed, abs=1)
    assert two.cost.fixed_ms > one.cost.fixed_ms
    assert two.cost.decode_ms == one.cost.decode_ms / 2


@pytest.fixture(scope="module")
def overload():
    """Twice what the node can take for five minutes, then half of it for ten."""
    many = wishes(WORKLOADS["chat"], 8192, 1.7, seed=7, horizon_s=200)
    few = wishes(WORKLOADS["chat"], 8192, 0.3, seed=8, horizon_s=500)
    later = [
        replace(wish, id=f"later{n}", arrival_ms=wish.arrival_ms + 300_000)
        for n, wish in enumerate(few)
    ]
    return play(OURS, HARDWARE, TABLE, [*many, *later], 800, is_patient=True)


def share_met(outcome, sla, begin_s, end_s):
    jobs = [j for j in outcome.jobs if j.sla == sla and begin_s <= j.wish.arrival_ms / 1000 < end_s]
    return sum(job.is_met(TABLE) for job in jobs) / len(jobs)


def test_under_overload_realtime_keeps_its_promises_and_batch_gives_way(overload):
    ended = [job for job in overload.jobs if job.state == FINISHED and job.wish.arrival_ms < 200e3]
    wait = {
        sla: sum(j.end_ms - j.wish.arrival_ms for j in ended if j.sla == sla) for sla in TABLE.names
    }
    counts = {sla: max(1, sum(job.sla == sla for job in ended)) for sla in TABLE.names}
    assert share_met(overload, "realtime", 0, 200) >= 0.98
    assert wait["batch"] / counts["batch"] > 3 * wait["realtime"] / counts["realtime"]


def test_after_an_overload_everything_is_as_before(overload):
    for sla in TABLE.names:
        assert share_met(overload, sla, 500, 800) >= 0.98, sla


def test_what_is_refused_is_told_when_to_come_again(overload):
    refused = [job for job in overload.jobs if job.state == REFUSED]
    assert all(job.retry_after_ms is not None and job.retry_after_ms > 0 for job in refused)
