"""The documented long run: a million simulated events, each with all invariants; minutes.

python -m pytest -m slow tests/router/simulator
"""

from itertools import count

import pytest

from router.simulator.capacity import play
from router.simulator.hardware import load
from router.simulator.job import REFUSED
from router.simulator.systems import NAMES, variants
from router.simulator.workload import load_workloads, wishes

WORKLOADS, TABLE = load_workloads()
HARDWARE = load("published")
NUM_EVENTS = 1_000_000  # moments of the clock, and steps of engines
RATES = {"chat": 1.0, "agents": 0.2, "documents": 0.1, "burst": 0.9, "code": 1.0, "short": 2.5}


@pytest.mark.slow
def test_a_million_events_break_no_invariant():
    num_events = 0
    for seed in count():
        name = list(RATES)[seed % len(RATES)]
        workload, system = WORKLOADS[name], variants(NAMES[seed % len(NAMES)])[0]
        context = workload.contexts[seed % len(workload.contexts)]
        rate = RATES[name] * (0.5, 1.0, 2.0)[seed % 3] * workload.contexts[0] / context
        requests = wishes(workload, context, rate, seed, horizon_s=300)
        outcome = play(system, HARDWARE, TABLE, requests, 300, is_patient=True, is_checked=True)
        num_events += outcome.num_events + outcome.num_steps
        if num_events >= NUM_EVENTS:
            break
    assert num_events >= NUM_EVENTS


@pytest.mark.slow
def test_who_is_refused_would_have_been_too_late():
    """A replay of the same seed in which the door takes him shows it."""
    system = variants("gpu+cpu")[0]
    requests = wishes(WORKLOADS["chat"], 8192, 1.8, seed=7, horizon_s=240)
    first = play(system, HARDWARE, TABLE, requests, 240, is_patient=True)
    refused = [job for job in first.jobs if job.state == REFUSED][:8]
    assert refused
    met = []
    for job in refused:
        again = play(system, HARDWARE, TABLE, requests, 240, is_patient=True, let_in={job.id})
        [taken] = [other for other in again.jobs if other.id == job.id]
        met.append(taken.is_met(TABLE))
    assert sum(met) <= len(met) / 4
