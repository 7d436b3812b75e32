"""What a key may ask for: counted by the store, given back, and never another key's business."""

import asyncio

import pytest

from ingest.access import gate
from ingest.access.gate import Gate
from ingest.access.keys import Key, Limits, add_key
from workers.store import Store
from workers.wire import GROUP, EndEvent, Keys, Request, SamplingParams, Usage
from workers.worker_store import WorkerStore


@pytest.fixture
def store(redis_url):
    store = WorkerStore(redis_url, Keys("lockstep"))
    store.redis.xgroup_create(store.keys.requests("standard"), GROUP, id="0", mkstream=True)
    return store


def accept(store, request_id, key="k", limits=(0, 0, 0), num_tokens=10):
    told = {"tenant": "default", "sla": "standard", "body": b"body", "num_tokens": num_tokens}
    return store.accept(request_id=request_id, key=key, key_limits=limits, **told)


def end(store, accepted, request_id, output_tokens=2):
    """Routed, claimed and finished."""
    store.redis.xreadgroup(GROUP, "router-0", {store.keys.requests("standard"): ">"})
    asked = Request(
        id=request_id, model="m", token_ids=(1, 2, 3, 4), arrival_ms=1000,
        params=SamplingParams(max_tokens=6),
    )  # fmt: skip
    entry = {"sla": "standard", "entry_id": accepted.entry_id, "pool": "cpu", "reason": "test"}
    assert store.route(request=asked, **entry) == "routed"
    [item] = store.claim("cpu", "w1", 1)
    usage = Usage(prompt_tokens=4, output_tokens=output_tokens)
    assert store.finish("cpu", "w1", item, EndEvent(status="finished", usage=usage), "text")


def test_requests_of_a_minute_are_counted_for_each_key(store):
    limits = (2, 0, 0)
    assert [accept(store, f"r{n}", "k", limits).status for n in range(3)] == [
        *("accepted", "accepted", "key_limited")
    ]
    assert accept(store, "r3", "k", limits).retry_ms <= 30_000
    assert accept(store, "r3", "other", limits).is_new
    assert accept(store, "r4", "").is_new


def test_tokens_that_were_not_needed_are_given_back_at_the_end(store):
    limits = (0, 100, 0)
    first = accept(store, "r1", "k", limits, num_tokens=90)
    assert accept(store, "r2", "k", limits, num_tokens=50).status == "key_limited"
    end(store, first, "r1", output_tokens=2)  # needed 6
    assert accept(store, "r2", "k", limits, num_tokens=50).is_new


def test_as_many_at_once_as_a_key_may_and_an_end_makes_room(store):
    limits = (0, 0, 2)
    first = accept(store, "r1", "k", limits)
    accept(store, "r2", "k", limits)
    busy = accept(store, "r3", "k", limits)
    assert (busy.status, busy.is_new) == ("key_busy", False) and busy.retry_ms > 0
    assert accept(store, "r3", "other", limits).is_new
    end(store, first, "r1")
    assert accept(store, "r4", "k", limits).is_new
    assert store.redis.zcard("lockstep:held:k") == 2


def test_a_cancelled_request_makes_room_too(store):
    accept(store, "r1", "k", (0, 0, 1))
    store.cancel("r1")
    assert accept(store, "r2", "k", (0, 0, 1)).is_new


def test_a_request_that_vanished_holds_no_place_for_ever(store):
    accept(store, "r1", "k", (0, 0, 1))
    store.redis.delete(store.keys.job("r1"))
    assert accept(store, "r2", "k", (0, 0, 1)).is_new


def test_a_repeated_id_costs_nothing(store):
    limits = (1, 15, 1)
    assert accept(store, "r1", "k", limits).is_new
    assert [accept(store, "r1", "k", limits).status for _ in range(3)] == ["accepted"] * 3


def test_what_the_tenant_may_not_ask_for_is_not_charged_to_the_key(redis_url):
    store = Store(redis_url, Keys("lockstep"), requests_per_min=1)
    assert accept(store, "r1", "k", (2, 100, 5)).is_new
    assert accept(store, "r2", "k", (2, 100, 5)).status == "rate_limited"
    assert store.redis.zcard("lockstep:held:k") == 1
    level = store.redis.hmget("lockstep:rate:key:k", "requests", "tokens")
    assert [round(float(value)) for value in level] == [1, 90]


def test_the_door_says_429_and_when_to_come_back(door, monkeypatch):
    monkeypatch.setattr(gate, "KEYS_AGE_S", 0.0)
    for name, limits in (
        ("busy", Limits(concurrent=1)),
        ("often", Limits(requests_per_min=1)),
        ("much", Limits(tokens_per_min=40)),
    ):
        secret = add_key(door.desk.store, Key(id=name, limits=limits))
        headers = {"Authorization": f"Bearer {secret}"}
        body = {"prompt": "x", "max_tokens": 30}
        assert door.http.post("/v1/jobs", json=body, headers=headers).status_code == 202
        refused = door.http.post("/v1/jobs", json=body, headers=headers)
        assert refused.status_code == 429, name
        assert refused.json()["error"]["type"] == "rate_limit_error"
        assert int(refused.headers["retry-after"]) >= 1


def test_what_goes_on_in_a_keys_name_has_its_limits(settings):
    """Rows of a batch, say: they are no way around them. One that is gone has none."""
    store = Store.of(settings)
    limits = Limits(requests_per_min=7)
    add_key(store, Key(id="shop", tenant="acme", limits=limits))

    async def named(name, tenant):
        return await Gate(settings, store).named(name, tenant)

    assert asyncio.run(named("shop", "acme")).limits == limits
    for name, tenant in (("shop", "other"), ("gone", "acme")):
        found = asyncio.run(named(name, tenant))
        assert (found.id, found.tenant, found.limits) == (name, tenant, Limits())
