"""What was promoted before the router read it comes as its class, with the arrival that it had."""

import msgpack
import pytest

from router.consumer import Entry
from router.loop import Router
from workers.address import parse_networks


@pytest.fixture
def router(store, text, report):
    report()
    router = Router(store, "router-0", text, parse_networks("127.0.0.0/8"))
    router.join()
    return router


def test_it_is_routed_with_its_first_arrival(store, router):
    body = msgpack.packb({"id": "r1", "prompt": "a", "max_tokens": 1, "deadline_ms": 600_000})
    told = store.accept(request_id="r1", tenant="default", sla="batch", body=body)
    store.promote("r1", "realtime")
    assert router.turn() == 0.0
    job = store.job("r1")
    arrival_ms = int(told.entry_id.split("-")[0])
    assert (job["status"], job["sla"], job["arrival_ms"]) == ("queued", "realtime", arrival_ms)
    assert job["deadline_ms"] == arrival_ms + 600_000
    [item] = store.claim("cpu", "w1", 1)
    assert (item.request.sla, item.request.arrival_ms) == ("realtime", arrival_ms)


@pytest.mark.parametrize("told", [b"yesterday", b"", b"5-", b"\xff-1", b"12345678901234-1"])
def test_an_arrival_that_is_none_does_not_count(told):
    assert Entry("batch", "7-1", {b"arrived": told}).arrived == "7-1"


def test_one_that_the_router_holds_is_not_lost_when_it_is_promoted(store, router, report):
    """Its new message is its request: the one that is held is none any more."""
    body = msgpack.packb({"id": "r1", "prompt": "a", "max_tokens": 1})
    store.accept(request_id="r1", tenant="default", sla="batch", body=body)
    hold(router, report, "batch")
    store.promote("r1", "realtime")
    hold(router, report, "realtime")
    let_in(router, report)
    assert (store.job("r1")["status"], store.job("r1")["sla"]) == ("queued", "realtime")
    assert store.redis.lrange(store.keys.queue("cpu"), 0, -1) == [b"r1"]


def test_what_the_door_accepted_stands_before_a_held_message_of_the_same_id(store, router, report):
    asked = {"id": "r1", "prompt": "a", "max_tokens": 1}
    store.redis.xadd(store.keys.requests("batch"), {"m": msgpack.packb(asked)})
    hold(router, report, "batch")
    body = msgpack.packb(asked)
    store.accept(request_id="r1", tenant="default", sla="standard", body=body)
    hold(router, report, "standard")
    let_in(router, report)
    assert (store.job("r1")["status"], store.job("r1")["sla"]) == ("queued", "standard")
    assert [store.redis.xlen(store.keys.requests(sla)) for sla in ("batch", "standard")] == [0, 0]


def hold(router, report, sla):
    """The router reads a class while no pool is ready."""
    report(state="loading")
    router.sight._loads_at = float("-inf")
    router.sight.forget()
    router.handle(router.consumer.read(sla, 10))
    assert [held.entry.sla for held in router.held] == [sla]


def let_in(router, report):
    report()
    router.sight._loads_at = float("-inf")
    router.turn()
    assert not router.held
