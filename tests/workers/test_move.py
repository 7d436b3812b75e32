"""A request changes its pool: why it did is said of the last move, never of an earlier wish."""

import pytest

from workers.wire import GROUP, Keys, Request, SamplingParams
from workers.worker_store import WorkerStore


@pytest.fixture
def store(redis_url):
    store = WorkerStore(redis_url, Keys("lockstep"), lease_s=0.1)
    store.redis.xgroup_create(store.keys.requests("standard"), GROUP, id="0", mkstream=True)
    return store


@pytest.fixture
def item(store):
    """A request that the cpu pool runs."""
    entry_id = store.redis.xadd(store.keys.requests("standard"), {"m": b"?"}).decode()
    store.redis.xreadgroup(GROUP, "router-0", {store.keys.requests("standard"): ">"})
    params = SamplingParams(max_tokens=8)
    asked = Request(id="r1", model="m", token_ids=(1,), arrival_ms=1000, params=params)
    told = {"sla": "standard", "entry_id": entry_id, "request": asked, "pool": "cpu"}
    store.route(reason="cpu: first", **told)
    [item] = store.claim("cpu", "w1", 1)
    return item


def test_a_move_says_why_once_it_has_happened(store, item):
    assert store.move("r1", "gpu", "gpu: is idle") == "moving"
    assert store.job("r1")["reason"] == "cpu: first"
    assert store.hand_over("cpu", item, "gpu")
    job = store.job("r1")
    assert (job["pool"], job["reason"], job["moves"]) == ("gpu", "gpu: is idle", 1)
    assert "move_reason" not in job


def test_a_wish_that_was_taken_back_is_no_reason_of_a_later_move(store, item):
    store.move("r1", "gpu", "gpu: is idle")
    assert store.move("r1", "cpu") == "moved"
    assert store.hand_over("cpu", item, "gpu")
    assert store.job("r1")["reason"] == "gpu: handed over by cpu"


def test_a_wish_ends_with_the_pool_that_did_not_hear_it(store, item):
    """It is another claim's business then; its move for another reason said the first one's."""
    store.move("r1", "gpu", "gpu: is idle")
    store.hand_back("cpu", [item])
    assert "move_reason" not in store.job("r1")
    assert store.move("r1", "gpu", "gpu: begins it sooner") == "moved"
    [again] = store.claim("gpu", "w2", 1)
    assert store.hand_over("gpu", again, "cpu")
    assert store.job("r1")["reason"] == "cpu: handed over by gpu"
