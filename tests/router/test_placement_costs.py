"""Placement by what is predicted: which pool, in which phases, or nobody now."""

from dataclasses import replace

import pytest
from msgspec.structs import replace as with_fields

from router.forecast import forecast
from router.placement import Switches, place
from tests.router.node_pictures import CPU_COST, NOW_MS, TABLE, cpu, gpu, wanted


def placed(request, *pools, home=None, **options):
    return place(request, home, pools, TABLE, NOW_MS, **options)


@pytest.mark.parametrize("sla", TABLE.names)
def test_while_the_fast_pool_has_plenty_of_room_everything_goes_there(sla):
    assert placed(wanted(sla=sla), gpu(4), cpu()).kind == "gpu"


def test_what_the_slow_pool_does_in_time_leaves_a_full_fast_pool():
    """A prompt of a thousand tokens would take the CPU ten seconds: the GPU computes it."""
    for sla in ("standard", "batch"):
        plan = placed(wanted(sla=sla), gpu(28), cpu(4))
        assert (plan.kind, plan.pool, plan.then) == ("gpu+cpu", "gpu", "cpu")


def test_a_prompt_that_is_kept_needs_no_prefill_and_goes_whole():
    plan = placed(wanted(kept_tokens=990, sla="batch"), gpu(32, sla="standard"), cpu(4))
    assert plan.kind == "cpu"


def test_realtime_stays_on_the_fast_pool_however_full_of_others_it_is():
    assert placed(wanted(sla="realtime"), gpu(32), cpu()).kind == "gpu"


def test_a_slow_pool_is_not_filled_beyond_the_pace_that_it_promised():
    plan = placed(wanted(), gpu(28, sla="standard"), cpu(31, sla="standard"))
    assert plan.then is None and plan.pool != "cpu"


def test_what_only_one_pool_can_hold_goes_there():
    assert placed(wanted(prompt=100_000, sla="batch"), gpu(blocks=300), cpu()).kind == "cpu"


def test_what_has_no_room_anywhere_waits_and_is_told_how_long():
    full = {"sla": "realtime", "places": 4, "queue": (wanted("q", "realtime"),) * 4}
    plan = placed(wanted(sla="batch"), gpu(4, **full), cpu(4, **full))
    assert plan.kind == "wait"
    assert plan.wait_ms > 0 and "waits for room in gpu" in plan.reason


def test_the_reason_names_the_pools_and_what_is_predicted():
    plan = placed(wanted(), gpu(28), cpu(4))
    assert plan.reason.startswith("gpu, then cpu: keeps the promise, and gpu is ")
    assert "first token in " in plan.reason and plan.ttft_ms > 0 and plan.tpot_ms > 0


def test_a_deadline_that_an_idle_node_cannot_keep_is_refused_with_the_reason():
    plan = placed(wanted(prompt=100_000, deadline_ms=NOW_MS + 5_000), gpu(), cpu())
    assert (plan.kind, plan.forever, plan.field) == ("refuse", True, "deadline_ms")
    assert "5000 ms are left, and the first token alone takes " in plan.reason
    assert placed(wanted(deadline_ms=NOW_MS + 5_000), gpu(), cpu()).kind == "gpu"


def test_a_model_that_is_known_to_be_wrong_refuses_less():
    unsure = replace(gpu(), cost=with_fields(gpu().cost, error=0.9))
    late = wanted(prompt=20_000, deadline_ms=NOW_MS + 5_000)
    assert placed(late, gpu()).kind == "refuse"
    assert placed(late, unsure).kind == "gpu"


def test_the_door_refuses_what_would_be_later_than_promised_and_says_when_to_come():
    backlog = {"realtime": 0, "standard": 500, "batch": 0}
    plan = placed(wanted(), gpu(32, sla="standard"), cpu(32, sla="standard"), backlog=backlog)
    assert (plan.kind, plan.forever) == ("refuse", False)
    assert plan.wait_ms > TABLE["standard"].ttft_ms
    assert placed(wanted(sla="realtime"), gpu(32), cpu(32), backlog=backlog).kind == "gpu"


@pytest.mark.parametrize(
    ("switches", "kinds"),
    [
        (Switches(handoff=False), {"gpu", "cpu"}),
        (Switches(tiers=False), {"gpu", "cpu"}),
        (Switches(routing=False), {"gpu"}),
    ],
)
def test_a_mechanism_can_be_switched_off(switches, kinds):
    assert placed(wanted(), gpu(28), cpu(4), switches=switches).kind in kinds


def test_a_pool_that_says_no_cost_yet_makes_the_plain_rule_hold():
    assert placed(wanted(), gpu(31), replace(cpu(), cost=None)).reason == "gpu: ready"


def test_the_faster_pool_is_whichever_is_faster():
    """LOCKSTEP_GPU=emulate is some hundred times slower than the CPU."""
    slow = with_fields(CPU_COST, fixed_ms=10_000.0, prefill_ms=1_000.0)
    assert placed(wanted(), replace(gpu(), cost=slow), cpu()).kind == "cpu"


def test_what_waits_outside_is_shared_by_the_pools_at_their_rates():
    """Two equal pools serve it in half the time."""
    full, backlog = {"sla": "standard", "places": 8}, {"standard": 400}
    twin = replace(gpu(8, **full), name="cpu")
    alone = placed(wanted(), gpu(8, **full), backlog=backlog)
    together = placed(wanted(), gpu(8, **full), twin, backlog=backlog)
    assert together.wait_ms == pytest.approx(alone.wait_ms / 2, rel=0.1)


def test_prompts_that_were_claimed_since_the_pool_told_its_classes_count_too():
    told = gpu(4, sla="realtime", prefill_tokens=1000, prefill_by_class={"realtime": 1000})
    newer = replace(told, prefill_tokens=9000)
    late, soon = (forecast(wanted(sla="realtime"), view, TABLE).ttft_ms for view in (newer, told))
    assert late > soon
