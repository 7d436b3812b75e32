"""What was planned for a request, and where it is, can be read; moves are counted and say why."""

import pytest

from workers.placed import Placed, placed
from workers.wire import GROUP, EndEvent, Keys, Planned, Request, SamplingParams, TokenEvent
from workers.worker_store import WorkerStore

PLAN = Planned(kind="gpu+cpu", then_pool="cpu", predicted_ttft_ms=123.45)


@pytest.fixture
def store(redis_url):
    store = WorkerStore(redis_url, Keys("lockstep"))
    store.redis.xgroup_create(store.keys.requests("batch"), GROUP, id="0", mkstream=True)
    return store


def route(store, request_id="r1", pool="gpu", plan=PLAN, **changes):
    entry_id = store.redis.xadd(store.keys.requests("batch"), {"m": b"?"}).decode()
    store.redis.xreadgroup(GROUP, "router-0", {store.keys.requests("batch"): ">"})
    params = SamplingParams(max_tokens=8)
    fields = {"model": "m", "token_ids": (1, 2), "arrival_ms": 1000, "params": params}
    request = Request(id=request_id, sla="batch", **(fields | changes))
    told = {"sla": "batch", "entry_id": entry_id, "request": request, "pool": pool}
    return store.route(reason="why", plan=plan, **told)


def expected(request_id, pool, running, **changes):
    facts = {"sla": "batch", "arrival_ms": 1000, "prompt_tokens": 2, "max_tokens": 8}
    facts |= {"deadline_ms": None, "output_tokens": 0, "session_id": None, "then_pool": "cpu"}
    return Placed(request_id, pool, running, **(facts | {"moved_ms": 0} | changes))


def test_a_plan_stands_in_the_job_and_is_counted(store):
    route(store)
    job = store.job("r1")
    assert (job["plan"], job["then_pool"], job["predicted_ttft_ms"]) == ("gpu+cpu", "cpu", 123.5)
    route(store, "r2", plan=Planned(kind="cpu", why="room"))
    route(store, "r3", plan=Planned(kind="cpu", why="room"))
    counted = store.redis.hgetall(store.keys.placements)
    assert counted == {b"gpu+cpu unplanned": b"1", b"cpu room": b"2"}
    assert "then_pool" not in store.job("r2")


def test_a_worker_is_told_who_goes_on_after_the_first_token(store):
    route(store)
    route(store, "r2", plan=Planned(kind="gpu"))
    assert [item.then_pool for item in store.claim("gpu", "w1", 2)] == ["cpu", None]


def test_what_is_in_the_pools_is_read_in_the_order_in_which_it_will_be_claimed(store):
    route(store, "r1")
    [item] = store.claim("gpu", "w1", 1)
    token = TokenEvent(index=0, token_id=5, text="a", digest="0" * 16)
    store.journal("gpu", [(item, [token])])
    route(store, "r2", deadline_ms=9000, session_id="s")
    route(store, "r3", pool="cpu", plan=Planned())
    assert placed(store) == [
        expected("r2", "gpu", False, deadline_ms=9000, session_id="s"),
        expected("r3", "cpu", False, then_pool=None),
        expected("r1", "gpu", True, output_tokens=1),
    ]


def test_a_hand_over_ends_the_plan_and_counts_as_a_move(store):
    route(store)
    [item] = store.claim("gpu", "w1", 1)
    assert store.hand_over("gpu", item, "cpu")
    job = store.job("r1")
    assert (job["pool"], job["moves"], job["reason"]) == ("cpu", 1, "cpu: handed over by gpu")
    assert "then_pool" not in job
    assert store.claim("cpu", "w2", 1)[0].then_pool is None


def test_a_move_says_why_whether_the_request_waits_or_runs(store):
    route(store)
    assert store.move("r1", "cpu", "cpu: idle") == "moved"
    assert store.job("r1")["reason"] == "cpu: idle"
    [item] = store.claim("cpu", "w1", 1)
    assert store.move("r1", "gpu", "gpu: it was promoted") == "moving"
    assert store.job("r1")["reason"] == "cpu: idle"
    assert store.hand_over("cpu", item, "gpu")
    job = store.job("r1")
    assert (job["reason"], job["moves"]) == ("gpu: it was promoted", 2)
    assert placed(store)[0].moved_ms > 0


def test_a_wish_to_move_that_came_too_late_leaves_nothing_behind(store):
    route(store)
    [item] = store.claim("gpu", "w1", 1)
    store.move("r1", "cpu", "cpu: idle")
    store.finish("gpu", "w1", item, EndEvent(status="finished"), "text")
    job = store.job("r1")
    assert {"then_pool", "move_reason"} & job.keys() == set()
    assert job["plan"] == "gpu+cpu"
