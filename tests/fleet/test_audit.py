"""A pool that reports room and claims nothing is named; what waits there goes elsewhere."""

import pytest

from router import audit as auditing
from router.audit import Audit
from workers.fleet.presence import NodeReport, Presence
from workers.wire import GROUP, Keys, PoolLoad, Request, SamplingParams
from workers.worker_store import WorkerStore

LIE = {"state": "ready", "running": 0, "capacity": 4, "total_blocks": 9}


@pytest.fixture
def store(redis_url):
    store = WorkerStore(redis_url, Keys("f", node="a"))
    store.redis.xgroup_create(store.keys.requests("standard"), GROUP, id="0", mkstream=True)
    for name in ("a", "b", "c"):
        of_node = WorkerStore(redis_url, Keys("f", node=name))
        Presence(of_node, "same", NodeReport(node=name, instance=name)).say(1.0)
    return store


def report(store, **says):
    of_b = WorkerStore(store.url, Keys("f", node="b"))
    of_b.report(PoolLoad(pool="cpu@b", worker="b-0", **(LIE | says)))


def route(store, request_id, pool="cpu@b"):
    entry_id = store.redis.xadd(store.keys.requests("standard"), {"m": b"?"}).decode()
    store.redis.xreadgroup(GROUP, "router-0", {store.keys.requests("standard"): ">"})
    request = Request(
        id=request_id, model="m", token_ids=(1,), arrival_ms=1, params=SamplingParams(max_tokens=4)
    )
    told = {"sla": "standard", "entry_id": entry_id, "request": request}
    assert store.route(pool=pool, reason="test", **told) == "routed"


def doubts(audit, *seconds):
    """Whom it doubts after looks at these moments."""
    for now_s in seconds:
        audit.judge("b", now_s)
    return audit.doubted


def test_a_queue_that_does_not_move_beside_free_places_is_doubted(store):
    route(store, "r1")
    report(store)
    audit = Audit(store)
    assert doubts(audit, 0.0, auditing.DOUBT_S - 1) == frozenset()
    assert doubts(audit, auditing.DOUBT_S) == {"b"}
    store.redis.lpop(store.keys.queue("cpu@b"))
    assert doubts(audit, auditing.DOUBT_S + 1) == frozenset(), "it did claim"


@pytest.mark.parametrize(
    "says", [{"running": 4}, {"waiting_blocks": 2}, {"state": "loading"}, {"state": "stopping"}]
)
def test_who_has_no_room_is_not_doubted(store, says):
    route(store, "r1")
    report(store, **says)
    assert doubts(Audit(store), 0.0, 100.0) == frozenset()


def test_a_queue_that_moves_and_a_suspended_fleet_are_not_doubted(store):
    audit = Audit(store)
    report(store)
    for n in range(3):
        route(store, f"r{n}")
        assert doubts(audit, 20.0 * n) == frozenset()
        store.redis.lpop(store.keys.queue("cpu@b"))
    route(store, "r9")
    store.redis.set(store.keys.rq_suspended, 1)
    assert doubts(audit, 100.0, 200.0) == frozenset()


def test_each_look_is_at_another_node(store):
    audit = Audit(store)
    assert [audit.next_name() for _ in range(3)] == ["b", "c", "b"]
