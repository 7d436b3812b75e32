"""Runs of steps are steps one by one, to the last bit; the same seed is the same run."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.simulator.capacity import play
from router.simulator.hardware import load
from router.simulator.systems import NAMES, variants
from router.simulator.workload import load_workloads, wishes

WORKLOADS, TABLE = load_workloads()
HARDWARE = load("published")


def moments(system, requests, horizon_s, **how):
    """When each request had its first token and its end, and where."""
    outcome = play(system, HARDWARE, TABLE, requests, horizon_s, is_patient=True, **how)
    return sorted((j.id, j.first_ms, j.end_ms, j.pool, j.moves, j.made) for j in outcome.jobs)


@pytest.mark.parametrize("name", NAMES)
def test_a_run_of_steps_is_the_same_as_steps_one_by_one(name):
    requests = wishes(WORKLOADS["chat"], 131072, 0.9, seed=3, horizon_s=60)
    for system in variants(name)[:1]:
        fast = moments(system, requests, 60)
        assert moments(system, requests, 60, one_by_one=True) == fast


@settings(max_examples=6, deadline=None)
@given(
    name=st.sampled_from(["chat", "agents", "documents", "burst"]),
    system=st.sampled_from(NAMES),
    rate=st.floats(0.05, 2.0),
    seed=st.integers(0, 1000),
)
def test_whatever_comes_runs_of_steps_change_nothing(name, system, rate, seed):
    workload = WORKLOADS[name]
    requests = wishes(workload, workload.contexts[0], rate, seed, horizon_s=30)
    one = variants(system)[-1]
    assert moments(one, requests, 30) == moments(one, requests, 30, one_by_one=True)


def test_the_same_seed_is_the_same_run():
    requests = wishes(WORKLOADS["burst"], 4096, 1.0, seed=5, horizon_s=60)
    system = variants("gpu+cpu")[0]
    assert moments(system, requests, 60) == moments(system, requests, 60)
    assert requests == wishes(WORKLOADS["burst"], 4096, 1.0, seed=5, horizon_s=60)
    assert requests != wishes(WORKLOADS["burst"], 4096, 1.0, seed=6, horizon_s=60)
