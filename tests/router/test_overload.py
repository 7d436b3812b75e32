"""What is too much on a stream is ended, newest first; its sender is told when to ask again."""

import msgpack
import pytest

from router.loop import Router
from tests.router.conftest import MODEL
from workers.address import parse_networks
from workers.cost import CostModel
from workers.promises import pressure
from workers.sla import SlaClass, SlaTable
from workers.wire import Keys, PoolLoad, Pressure
from workers.worker_store import WorkerStore

TABLE = SlaTable(
    (SlaClass(name="realtime", ttft_ms=1000), SlaClass(name="batch", handicap_ms=9, max_queue=2))
)
SLOW = CostModel(fixed_ms=100, decode_ms=10, prefill_ms=10)


@pytest.fixture
def store(redis_url):
    return WorkerStore(redis_url, Keys("t", TABLE.names), lease_s=1.0, table=TABLE)


@pytest.fixture
def make_router(text, store):
    def make():
        router = Router(store, "router-0", text, parse_networks("127.0.0.0/8"), table=TABLE)
        router.join()
        return router

    return make


def report(store, **fields):
    told = {"pool": "cpu", "worker": "cpu", "state": "ready", "model": MODEL, "capacity": 1}
    store.report(PoolLoad(**(told | {"total_blocks": 8, "running": 1} | fields)))


def add(store, number, sla="batch", **fields):
    body = {"id": f"r{number}", "prompt": "a", "max_tokens": 16, **fields}
    store.redis.xadd(store.keys.requests(sla), {"m": msgpack.packb(body)})


def ends(store, count):
    jobs = [store.job(f"r{n}") or {} for n in range(count)]
    return [job.get("code") for job in jobs]


def test_more_than_the_class_may_have_waiting_are_ended_newest_first(store, make_router):
    router = make_router()
    for number in range(5):
        add(store, number)
    router.turn()
    assert ends(store, 5) == [None, None, "overloaded", "overloaded", "overloaded"]
    job = store.job("r4")
    assert (job["status"], job["retry_after_s"]) == ("failed", 1)
    assert "5 requests of its class wait already; ask again in 1 s" in job["error"]
    assert store.redis.xlen(store.keys.requests("batch")) == 2
    assert store.redis.hgetall(store.keys.promises) == {b"batch overloaded": b"3"}
    assert store.redis.hgetall(store.keys.refusals) == {b"overloaded": b"3"}
    assert store.redis.xlen(store.keys.dead) == 0


def test_producers_are_told_how_full_a_class_is(store, make_router):
    assert pressure(store, "batch") is None
    router = make_router()
    for number in range(5):
        add(store, number)
    router.turn()
    told = pressure(store, "batch")
    assert (told.waiting, told.most) == (5, 2)
    assert 0 < store.redis.ttl(store.keys.pressure("batch")) <= 5
    assert pressure(store, "realtime").waiting == 0


def test_what_would_break_the_promise_is_ended_with_the_time_at_which_it_would_not(
    store, make_router
):
    report(store, cost=SLOW, decoding=1, context_tokens=50, by_class={"realtime": 1})
    router = make_router()
    for number in range(40):
        add(store, number, "realtime")
    router.turn()
    told = pressure(store, "realtime")
    shed = [code == "overloaded" for code in ends(store, 40)]
    assert shed == sorted(shed)  # the newest went
    assert 0 < sum(shed) == told.waiting - told.most
    assert store.job("r39")["retry_after_s"] == max(1, -(-told.retry_ms // 1000))


def test_what_the_http_door_has_taken_stays(store, make_router):
    router = make_router()
    add(store, 0)
    add(store, 1)
    body = msgpack.packb({"id": "r2", "prompt": "a"})
    store.accept(request_id="r2", tenant="default", sla="batch", body=body)
    router.turn()
    assert ends(store, 3) == [None, "overloaded", None]
    assert store.job("r2")["status"] == "accepted"


def test_what_another_router_has_read_stays(store, make_router):
    router = make_router()
    for number in range(4):
        add(store, number)
    key = store.keys.requests("batch")
    store.redis.xreadgroup("router", "router-1", {key: ">"}, count=4)
    router.turn()
    assert ends(store, 4) == [None] * 4
    assert store.redis.xpending(key, "router")["pending"] == 4


def test_a_refused_webhook_is_posted(store, make_router):
    router = make_router()
    for number in range(3):
        add(store, number, webhook_url="http://127.0.0.1:9/hook")
    router.turn()
    assert store.webhook("r2")["state"] == "pending"


def test_a_tenant_that_asks_for_too_much_by_stream_is_told_when_to_ask_again(redis_url, text):
    store = WorkerStore(redis_url, Keys("t", TABLE.names), table=TABLE, requests_per_min=2)
    router = Router(store, "router-0", text, (), table=TABLE)
    router.join()
    report(store, running=0, capacity=16)
    for number in range(3):
        add(store, number, "realtime")
    for _ in range(9):
        router.turn()
    jobs = [store.job(f"r{n}") for n in range(3)]
    assert [job["status"] for job in jobs] == ["queued", "queued", "failed"]
    assert jobs[2]["code"] == "rate_limited"
    assert 25 <= jobs[2]["retry_after_s"] <= 30
    assert store.redis.hgetall(store.keys.promises) == {}


def test_a_router_that_dies_as_it_hands_over_charges_once(redis_url, text, monkeypatch):
    """Its successor reads the message again; the tenant paid for it both times."""
    store = WorkerStore(redis_url, Keys("t", TABLE.names), table=TABLE, tokens_per_min=1000)
    report(store, running=0, capacity=16)
    add(store, 0, "realtime")
    with monkeypatch.context() as dying:
        dying.setattr("router.placing.dispatch", lambda *_: 1 / 0)
        router = Router(store, "router-0", text, (), table=TABLE)
        router.join()
        with pytest.raises(ZeroDivisionError):
            router.turn()
    router = Router(store, "router-0", text, (), table=TABLE)
    router.join()
    router.turn()
    assert store.job("r0")["status"] == "queued"
    left = round(float(store.redis.hget("t:rate:default", "tokens")))
    assert left == 1000 - store.job("r0")["charged_tokens"]


def test_what_another_router_has_ended_is_not_ended_twice_over(store, make_router):
    """Both saw the same five wait; what the first one left is what may wait."""
    overload, seen = make_router().overload, Pressure(waiting=5, most=2, wait_ms=None)
    for number in range(5):
        add(store, number)
    for _ in range(2):
        overload.shed("batch", seen)
    assert ends(store, 5).count("overloaded") == 3
