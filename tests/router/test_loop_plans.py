"""The router's loop with pools that say what they cost: plans, held classes, moves."""

import time

import msgpack
import pytest

from router.loop import Router
from router.sight import JOBS_AGE_S
from tests.router.node_pictures import CPU_COST, GPU_COST, OUTPUT
from workers.cost import CostModel
from workers.sla import SlaTable
from workers.wire import GROUP, PoolLoad

MODEL = "tiny-llama"


@pytest.fixture
def router(store, text):
    router = Router(store, "router-0", text, ())
    router.join()
    return router


def say(store, pool, **fields):
    load = PoolLoad(
        pool=pool,
        worker=pool,
        model=MODEL,
        cost=GPU_COST if pool == "gpu" else CPU_COST,
        output_tokens=OUTPUT,
        **{"state": "ready", "capacity": 4, "total_blocks": 64, "free_blocks": 64, **fields},
    )
    store.report(load)


def add(store, sla="standard", **fields):
    asked = {"prompt": "Hello", "max_tokens": 5, **fields}
    entry_id = store.redis.xadd(store.keys.requests(sla), {"m": msgpack.packb(asked)})
    return f"{sla}-{entry_id.decode()}"


def queued(store, pool):
    return [item.decode() for item in store.redis.lrange(store.keys.queue(pool), 0, -1)]


def look_again(router):
    router.sight._loads_at = router.sight._jobs_at = router.replanner.looked_at = float("-inf")
    router.store.redis.delete(router.store.keys.replanned)


def test_the_plan_and_what_it_predicts_stand_in_the_job(store, router):
    say(store, "gpu")
    say(store, "cpu")
    job = add(store)
    router.turn()
    known = store.job(job)
    assert (known["pool"], known["plan"]) == ("gpu", "gpu")
    assert known["reason"].startswith("gpu: has room; first token in ")
    assert known["predicted_ttft_ms"] > 0


def test_a_full_fast_pool_makes_the_other_one_decode(store, router):
    say(store, "gpu", running=3, decoding=3, by_class={"realtime": 3})
    say(store, "cpu")
    job = add(store, "batch")
    router.turn()
    known = store.job(job)
    assert known["plan"] in ("cpu", "gpu+cpu")
    assert known["plan"] == "cpu" or known["then_pool"] == "cpu"


def test_an_impossible_deadline_is_refused_with_the_reason(store, router):
    store.report(
        PoolLoad(
            pool="gpu",
            worker="gpu",
            model=MODEL,
            state="ready",
            capacity=4,
            total_blocks=64,
            free_blocks=64,
            cost=CostModel(fixed_ms=60_000.0),
        )
    )
    job = add(store, deadline_ms=5_000)
    router.turn()
    known = store.job(job)
    assert (known["status"], known["code"]) == ("failed", "impossible_deadline")
    assert known["error"].startswith("deadline_ms: ") and "idle gpu pool" in known["error"]


def test_a_class_that_waits_for_a_full_pool_does_not_hold_up_another(store, router):
    full = {"running": 4, "decoding": 4, "free_blocks": 0, "by_class": {"standard": 4}}
    say(store, "gpu", **full)
    waiting = [add(store, "batch") for _ in range(20)]
    router.turn()
    urgent = add(store, "realtime")
    router.turn()
    assert urgent in queued(store, "gpu")
    assert len(set(queued(store, "gpu")) & set(waiting)) < len(waiting)
    assert router.held


def test_what_waits_for_a_pool_that_was_lost_is_moved(store, router):
    say(store, "gpu")
    say(store, "cpu")
    job = add(store)
    router.turn()
    assert queued(store, "gpu") == [job]
    say(store, "gpu", state="absent")
    look_again(router)
    router.turn()
    assert (queued(store, "gpu"), queued(store, "cpu")) == ([], [job])
    assert store.job(job)["reason"] == "cpu: gpu was to run it and is absent"


def test_what_a_lost_pool_ran_is_put_back_and_moved(store, router):
    say(store, "gpu")
    say(store, "cpu")
    job = add(store)
    router.turn()
    assert store.claim("gpu", "gpu", 1)
    say(store, "gpu", state="absent")
    time.sleep(store.lease_s + 0.1)
    look_again(router)
    router.turn()
    look_again(router)
    router.turn()
    assert queued(store, "cpu") == [job]


def test_what_was_claimed_since_the_last_look_is_not_moved_as_if_it_waited(store, router):
    say(store, "gpu")
    jobs = [add(store), add(store)]
    router.turn()
    router.sight.forget()
    look_again(router)
    assert sorted(job.wanted.request_id for job in router.sight.movable()) == sorted(jobs)
    [item] = store.claim("gpu", "gpu", 1)
    router.sight.forget()
    movable = {job.wanted.request_id for job in router.sight.movable()}
    assert movable == set(jobs) - {item.job_id}


def test_one_router_replans_at_a_time(store, router, text):
    other = Router(store, "router-1", text, ())
    other.join()
    say(store, "gpu")
    say(store, "cpu")
    job = add(store)
    router.turn()
    say(store, "gpu", state="absent")
    look_again(router)
    store.redis.set(store.keys.replanned, "router-1", px=int(JOBS_AGE_S * 1000))
    router.replanner.looked_at = float("-inf")
    router.turn()
    assert queued(store, "gpu") == [job]


def test_a_class_of_the_settings_has_its_stream(store, text):
    table = SlaTable.of({"nightly": {"like": "batch"}})
    store.keys.classes, store.table = table.names, table
    router = Router(store, "router-0", text, (), table=table)
    router.join()
    say(store, "gpu")
    job = add(store, "nightly")
    router.turn()
    assert queued(store, "gpu") == [job]
    assert store.job(job)["sla"] == "nightly"
    assert store.redis.xpending(store.keys.requests("nightly"), GROUP)["pending"] == 0
