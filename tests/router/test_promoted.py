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
