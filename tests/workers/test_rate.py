"""What a tenant may ask for in a minute: counted by the store, told truly, settled at the end."""

import pytest

from workers.store import RateLimited
from workers.wire import GROUP, EndEvent, Keys, Request, SamplingParams, Usage
from workers.worker_store import WorkerStore


@pytest.fixture
def make_store(redis_url):
    def make(**limits):
        store = WorkerStore(redis_url, Keys("lockstep"), **limits)
        if not store.redis.exists(store.keys.requests("standard")):
            store.redis.xgroup_create(store.keys.requests("standard"), GROUP, id="0", mkstream=True)
        return store

    return make


def accept(store, request_id, num_tokens=10, tenant="default"):
    told = {"tenant": tenant, "sla": "standard", "body": b"body", "num_tokens": num_tokens}
    return store.accept(request_id=request_id, **told)


def request(request_id, max_tokens=6, tenant="default"):
    params = SamplingParams(max_tokens=max_tokens)
    fields = {"model": "m", "token_ids": (1, 2, 3, 4), "arrival_ms": 1000, "params": params}
    return Request(id=request_id, tenant=tenant, **fields)


def later(store, seconds, tenant="default"):
    """As if so much time had passed since the buckets were looked at."""
    key = f"lockstep:rate:{tenant}"
    at_ms = int(store.redis.hget(key, "at_ms"))
    store.redis.hset(key, "at_ms", at_ms - round(seconds * 1000))


def tokens_left(store, tenant="default"):
    return round(float(store.redis.hget(f"lockstep:rate:{tenant}", "tokens")))


def send(store, request_id):
    """By a stream, and read by a router. Gives what that is to route."""
    entry_id = store.redis.xadd(store.keys.requests("standard"), {"m": b"?"}).decode()
    store.redis.xreadgroup(GROUP, "router-0", {store.keys.requests("standard"): ">"})
    return {"entry_id": entry_id, "request": request(request_id)}


def route(store, entry_id, request):
    told = {"sla": "standard", "pool": "cpu", "reason": "test"}
    return store.route(entry_id=entry_id, request=request, **told)


def about(tokens):
    """A bucket fills while a test runs."""
    return pytest.approx(tokens, abs=4)


def run_to_end(store, entry_id, asked, output_tokens):
    """Routed, claimed and finished."""
    store.redis.xreadgroup(GROUP, "router-0", {store.keys.requests("standard"): ">"})
    assert route(store, entry_id, asked) == "routed"
    [item] = store.claim("cpu", "w1", 1)
    usage = Usage(prompt_tokens=4, output_tokens=output_tokens)
    assert store.finish("cpu", "w1", item, EndEvent(status="finished", usage=usage), "text")


def test_requests_of_a_minute_are_counted_and_the_time_that_is_told_is_true(make_store):
    store = make_store(requests_per_min=3)
    assert [accept(store, f"r{n}").is_new for n in range(3)] == [True] * 3
    refused = accept(store, "r3")
    assert (refused.is_new, refused.status) == (False, "rate_limited")
    assert 10_000 < refused.retry_ms <= 20_000
    assert store.job("r3") is None
    later(store, refused.retry_ms / 1000 - 5)
    assert accept(store, "r3").status == "rate_limited"
    later(store, 5)
    assert accept(store, "r3").is_new


def test_a_repeated_id_costs_nothing(make_store):
    store = make_store(requests_per_min=1)
    assert accept(store, "r1").is_new
    assert [accept(store, "r1").status for _ in range(3)] == ["accepted"] * 3


def test_each_tenant_has_a_rate_of_its_own(make_store):
    store = make_store(requests_per_min=1)
    assert accept(store, "r1").is_new
    assert accept(store, "t--r1", tenant="t").is_new
    assert accept(store, "r2").status == "rate_limited"


def test_what_a_request_did_not_need_is_given_back_at_its_end(make_store):
    store = make_store(tokens_per_min=100)
    accepted = accept(store, "r1", num_tokens=90)
    assert tokens_left(store) == about(10)
    assert accept(store, "r2", num_tokens=30).status == "rate_limited"
    run_to_end(store, accepted.entry_id, request("r1"), output_tokens=2)
    assert tokens_left(store) == about(94)
    assert accept(store, "r2", num_tokens=30).is_new


def test_one_that_may_need_more_than_a_minute_gives_takes_all_and_owes_the_rest(make_store):
    store = make_store(tokens_per_min=60)
    accepted = accept(store, "r1", num_tokens=10_000)
    assert (accepted.is_new, tokens_left(store)) == (True, about(0))
    run_to_end(store, accepted.entry_id, request("r1"), output_tokens=116)
    assert tokens_left(store) == about(-60)
    refused = accept(store, "r2", num_tokens=30)
    assert 80_000 < refused.retry_ms <= 90_000


def test_a_request_from_a_stream_is_charged_once_and_settled(make_store):
    store = make_store(tokens_per_min=100, requests_per_min=2)
    sent = send(store, "r1")
    assert route(store, **sent) == "routed"
    assert (store.job("r1")["charged_tokens"], tokens_left(store)) == (10, about(90))
    [item] = store.claim("cpu", "w1", 1)
    usage = Usage(prompt_tokens=4, output_tokens=1)
    store.finish("cpu", "w1", item, EndEvent(status="finished", usage=usage), "text")
    assert tokens_left(store) == about(95)
    assert route(store, **send(store, "r1")) == "duplicate"
    assert tokens_left(store) == about(95)
    assert route(store, **send(store, "r2")) == "routed"
    with pytest.raises(RateLimited) as limited:
        route(store, **send(store, "r3"))
    assert limited.value.wait_ms > 20_000


def test_a_request_that_is_routed_again_for_a_lost_reply_is_charged_once(make_store):
    """It was charged in one call and routed in another: a router that died between the two, or
    heard no reply, charged its tenant twice."""
    store = make_store(tokens_per_min=100)
    sent = send(store, "r1")
    assert [route(store, **sent), route(store, **sent)] == ["routed", "not-mine"]
    assert tokens_left(store) == about(90)


def test_one_that_may_not_be_taken_yet_stays_where_it_was_and_is_not_charged(make_store):
    store = make_store(tokens_per_min=15)
    route(store, **send(store, "r1"))
    sent = send(store, "r2")
    for _ in range(2):
        with pytest.raises(RateLimited):
            route(store, **sent)
    assert tokens_left(store) == about(5)
    assert store.job("r2") is None
    later(store, 60)
    assert route(store, **sent) == "routed"


def test_what_the_door_has_charged_the_router_does_not(make_store):
    store = make_store(tokens_per_min=100)
    entry_id = accept(store, "r1", num_tokens=10).entry_id
    store.redis.xreadgroup(GROUP, "router-0", {store.keys.requests("standard"): ">"})
    assert route(store, entry_id, request("r1")) == "routed"
    assert tokens_left(store) == about(90)


def test_a_request_that_is_cancelled_in_its_stream_gives_all_back(make_store):
    store = make_store(tokens_per_min=100)
    accept(store, "r1", num_tokens=40)
    assert store.cancel("r1") == "cancelled"
    assert tokens_left(store) == about(100)


def test_a_limit_that_is_new_begins_full(make_store):
    assert accept(make_store(requests_per_min=10), "r1").is_new
    both = make_store(requests_per_min=10, tokens_per_min=100)
    assert accept(both, "r2", num_tokens=90).is_new
    assert tokens_left(both) == about(10)
    assert accept(make_store(tokens_per_min=100), "r3").is_new
    assert accept(make_store(requests_per_min=2, tokens_per_min=100), "r4", num_tokens=0).is_new


def test_without_limits_nothing_is_kept(make_store):
    store = make_store()
    assert accept(store, "r1").is_new
    assert route(store, **send(store, "r2")) == route(store, **send(store, "r3")) == "routed"
    assert not store.redis.exists("lockstep:rate:default")
    assert "charged_tokens" not in store.job("r1")
