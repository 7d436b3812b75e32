"""Where a request runs, and the sentence that says why."""

import pytest

from router.placement import place
from router.pools import PoolView, Wanted, views_of
from workers.sla import SlaTable
from workers.wire import PoolLoad

TABLE = SlaTable()
NOW_MS = 1_000_000


def wanted(tokens=300, sla="standard", **fields):
    return Wanted("a", sla, NOW_MS, 1, tokens - 1, **fields)


def load(name, state="ready", blocks=4, model="m", capacity=16):
    return PoolLoad(
        pool=name, worker="w", state=state, total_blocks=blocks, model=model, capacity=capacity
    )


def placed(loads, home=None, queues=None, **fields):
    views = views_of(loads, queues or {}, "m")
    return place(wanted(**fields), home, views, TABLE, NOW_MS)


@pytest.mark.parametrize(
    ("loads", "home", "pool", "reason"),
    [
        ([load("cpu")], None, "cpu", "cpu: ready, gpu is not reporting"),
        ([load("cpu"), load("gpu", "absent")], None, "cpu", "cpu: ready, gpu is absent"),
        ([load("gpu", "loading"), load("cpu")], None, "cpu", "cpu: ready, gpu is loading"),
        ([load("cpu"), load("gpu")], None, "gpu", "gpu: ready"),
        (
            [load("cpu"), load("gpu", blocks=1)],
            None,
            "cpu",
            "cpu: ready, gpu cannot hold the request",
        ),
        ([load("cpu"), load("gpu")], "cpu", "cpu", "cpu: keeps the session"),
        (
            [load("cpu", "loading"), load("gpu")],
            "cpu",
            "gpu",
            "gpu: ready, cpu keeps the session and is loading",
        ),
        (
            [load("cpu"), load("gpu", blocks=1)],
            "gpu",
            "cpu",
            "cpu: ready, gpu keeps the session and cannot hold the request",
        ),
        ([load("cpu", blocks=0)], None, "cpu", "cpu: ready, gpu is not reporting"),
    ],
)
def test_without_costs_the_ready_pool_that_holds_it_takes_it(loads, home, pool, reason):
    plan = placed(loads, home)
    assert (plan.kind, plan.pool, plan.then, plan.reason) == (pool, pool, None, reason)


@pytest.mark.parametrize(
    ("loads", "words"),
    [
        ([], "gpu not reporting, cpu not reporting"),
        ([load("cpu", "loading")], "cpu loading"),
        ([load("cpu", model="other")], "cpu ready for other only"),
    ],
)
def test_without_a_ready_pool_it_waits(loads, words):
    plan = placed(loads)
    assert plan.kind == "wait"
    assert words in plan.reason


def test_what_no_pool_can_ever_hold_is_refused():
    loads = [load("cpu", blocks=4), load("gpu", blocks=1)]
    plan = placed(loads, tokens=1025)
    assert (plan.kind, plan.forever, plan.field) == ("refuse", True, "max_tokens")
    assert "1025 tokens, and this node holds 1024" in plan.reason
    assert placed(loads, tokens=1024).pool == "cpu"


def test_without_costs_a_full_queue_sends_it_to_the_other_pool_and_two_make_it_wait():
    loads = [load("cpu", capacity=1), load("gpu", capacity=1)]
    waiting = [wanted(), wanted()]
    plan = placed(loads, queues={"gpu": waiting})
    assert (plan.pool, plan.reason) == ("cpu", "cpu: ready, gpu has a full queue")
    assert placed(loads, queues={"gpu": waiting, "cpu": waiting}).kind == "wait"


def away(tokens, waiting=()):
    """A node whose GPU, which held 8 blocks, is gone for the moment."""
    views = views_of([load("cpu", blocks=4)], {"gpu": waiting}, "m", {"gpu": 8, "cpu": 4})
    return place(wanted(tokens=tokens), None, views, TABLE, NOW_MS)


def test_what_only_a_pool_holds_that_is_away_waits_for_it_and_is_not_refused():
    plan = away(1025)
    assert (plan.kind, plan.pool, plan.forever) == ("gpu", "gpu", False)
    assert "only pool that holds it, is not reporting and is waited for" in plan.reason
    assert away(1024).pool == "cpu"
    refused = away(2049)
    assert refused.forever and "this node holds 2048" in refused.reason
    assert away(1025, [wanted()] * 64).kind == "wait"


def test_a_view_adds_up_the_workers_of_a_pool():
    loads = [load("cpu", blocks=4), load("cpu", blocks=8), load("cpu", "loading", blocks=16)]
    gpu, cpu = views_of(loads, {}, "m")
    assert (gpu.name, gpu.state, gpu.places) == ("gpu", "not reporting", 0)
    assert (cpu.places, cpu.total_blocks, cpu.sequence_blocks) == (32, 12, 8)
    assert isinstance(cpu, PoolView) and cpu.is_ready
