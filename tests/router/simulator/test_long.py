"""The documented long run: a million simulated events, each with all invariants; minutes.

python -m pytest -m slow -rP tests/router/simulator
"""

from itertools import count
from random import Random
from statistics import median
from time import process_time

import pytest

from router.simulator.capacity import play
from router.simulator.hardware import load
from router.simulator.job import REFUSED
from router.simulator.systems import NAMES, variants
from router.simulator.workload import load_workloads, wishes

WORKLOADS, TABLE = load_workloads()
HARDWARE = load("published")
NUM_EVENTS = 1_000_000  # moments of the clock; no steps are skipped, so each is one of them
HORIZON_S = 100.0  # short runs, so that there are many different ones
RATES = {"chat": 1.0, "agents": 0.2, "documents": 0.1, "burst": 0.9, "code": 1.0, "short": 2.5}


@pytest.mark.slow
def test_a_million_events_break_no_invariant():
    num_events, begin_s = 0, process_time()
    for seed in count():
        draw = Random(seed)
        name = draw.choice(list(RATES))
        workload, system = WORKLOADS[name], draw.choice(variants(draw.choice(NAMES)))
        context = draw.choice(workload.contexts)
        rate = RATES[name] * draw.choice((0.5, 1.0, 2.0)) * workload.contexts[0] / context
        requests = wishes(workload, context, rate, seed, horizon_s=HORIZON_S)
        how = {"is_patient": True, "is_checked": True, "one_by_one": True}
        num_events += play(system, HARDWARE, TABLE, requests, HORIZON_S, **how).num_events
        if num_events >= NUM_EVENTS:
            break
    took_s = process_time() - begin_s
    print(f"{num_events} events, {seed + 1} runs, {took_s:.0f} s of processor time")
    assert num_events >= NUM_EVENTS


@pytest.mark.slow
@pytest.mark.parametrize("seed", [7, 8])
def test_who_is_refused_is_told_truly_how_long_it_would_have_waited(seed):
    """A replay of the same seed in which the door takes him shows it: within a quarter."""
    system = variants("gpu+cpu")[0]
    requests = wishes(WORKLOADS["chat"], 8192, 1.8, seed=seed, horizon_s=240)
    first = play(system, HARDWARE, TABLE, requests, 240, is_patient=True)
    refused = [job for job in first.jobs if job.state == REFUSED and job.sla == "standard"]
    assert len(refused) > 8
    told, seen = [], []
    for job in refused[:: len(refused) // 8]:
        again = play(system, HARDWARE, TABLE, requests, 240, is_patient=True, let_in={job.id})
        [taken] = [other for other in again.jobs if other.id == job.id]
        told.append(job.plan.ttft_ms)
        seen.append(taken.ttft_ms)
    assert sum(told) / sum(seen) == pytest.approx(1, abs=0.25)
    wrong = [abs(one - other) / other for one, other in zip(told, seen, strict=True)]
    assert median(wrong) <= 0.25
