"""A pool's queue is in order of rank: urgent classes first, and nobody is passed for ever."""

import pytest

from workers.sla import SlaTable
from workers.wire import GROUP, SLA_CLASSES, Keys, Request, SamplingParams
from workers.worker_store import WorkerStore

TABLE = SlaTable()


@pytest.fixture
def store(redis_url):
    store = WorkerStore(redis_url, Keys("lockstep"))
    for sla in SLA_CLASSES:
        store.redis.xgroup_create(store.keys.requests(sla), GROUP, id="0", mkstream=True)
    return store


def route(store, request_id, sla="batch", arrival_ms=1000, pool="cpu", **fields):
    stream = store.keys.requests(sla)
    entry_id = store.redis.xadd(stream, {"m": b"?"}).decode()
    store.redis.xreadgroup(GROUP, "router-0", {stream: ">"})
    request = Request(
        id=request_id,
        sla=sla,
        model="m",
        token_ids=(1,),
        arrival_ms=arrival_ms,
        params=SamplingParams(max_tokens=8),
        **fields,
    )
    return store.route(sla=sla, entry_id=entry_id, request=request, pool=pool, reason="why")


def queued(store, pool="cpu"):
    return [item.decode() for item in store.redis.lrange(store.keys.queue(pool), 0, -1)]


def test_an_urgent_request_goes_before_all_that_are_less_urgent(store):
    for request_id, sla in [("b1", "batch"), ("s1", "standard"), ("b2", "batch")]:
        route(store, request_id, sla)
    route(store, "r1", "realtime")
    assert queued(store) == ["r1", "s1", "b1", "b2"]


def test_within_a_class_the_first_come_is_the_first(store):
    for request_id, arrival_ms in [("b3", 3000), ("b1", 1000), ("b2", 2000), ("b4", 3000)]:
        route(store, request_id, arrival_ms=arrival_ms)
    assert queued(store) == ["b1", "b2", "b3", "b4"]


def test_nobody_is_passed_for_ever(store):
    old = 10**9
    route(store, "b1", "batch", arrival_ms=old)
    later = old + TABLE["batch"].handicap_ms
    route(store, "r1", "realtime", arrival_ms=later - 1)
    route(store, "r2", "realtime", arrival_ms=later + 1)
    assert queued(store) == ["r1", "b1", "r2"]


def test_a_near_deadline_counts_as_an_earlier_arrival(store):
    route(store, "b1", arrival_ms=1000)
    route(store, "b2", arrival_ms=2000, deadline_ms=60_000)
    route(store, "s1", "standard", arrival_ms=2000)
    assert queued(store) == ["s1", "b2", "b1"]


def test_a_promoted_request_goes_where_its_new_class_puts_it(store):
    for request_id, sla in [("b1", "batch"), ("b2", "batch"), ("s1", "standard")]:
        route(store, request_id, sla)
    store.promote("b2", "realtime")
    assert queued(store) == ["b2", "s1", "b1"]
    store.promote("s1", "batch")
    assert queued(store) == ["b2", "b1", "s1"]


def test_what_moves_to_another_queue_takes_its_place_there(store):
    route(store, "b1", "batch", pool="gpu")
    route(store, "r1", "realtime", pool="cpu")
    assert store.move("r1", "gpu") == "moved"
    assert queued(store, "gpu") == ["r1", "b1"]


def test_a_sessions_next_request_counts_as_if_it_came_when_it_is_let_in(store):
    """A session with many requests takes no turn from another."""
    route(store, "a1", session_id="s")
    route(store, "a2", session_id="s")
    route(store, "b1")
    store.claim("cpu", "w1", 1)
    store.cancel("a2")
    assert queued(store) == ["b1"]
