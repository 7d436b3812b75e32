"""Whether a request had what its class promises is counted when it ends, however it ends."""

import json

import pytest

from workers.wire import GROUP, EndEvent, Keys, Request, SamplingParams, Usage
from workers.worker_store import WorkerStore

USAGE = Usage(prompt_tokens=1, output_tokens=5)
PROMISED = {"realtime": {"ttft_ms": 100, "tpot_ms": 10}, "batch": {"deadline_ms": 60_000}}


@pytest.fixture
def store(redis_url):
    store = WorkerStore(redis_url, Keys("lockstep"))
    told = {sla: json.dumps(promise) for sla, promise in PROMISED.items()}
    store.redis.hset("lockstep:sla", mapping=told)
    for sla in store.keys.classes:
        store.redis.xgroup_create(store.keys.requests(sla), GROUP, id="0", mkstream=True)
    return store


def run_to_end(store, sla="realtime", age_ms=0, **end):
    """A request that came age_ms ago ends so."""
    seconds, _ = store.redis.time()
    entry_id = store.redis.xadd(store.keys.requests(sla), {"m": b"?"}).decode()
    store.redis.xreadgroup(GROUP, "router-0", {store.keys.requests(sla): ">"})
    arrival_ms = seconds * 1000 - age_ms
    params = SamplingParams(max_tokens=8)
    told = {"model": "m", "token_ids": (1,), "params": params, "arrival_ms": arrival_ms}
    asked = Request(id=f"r{entry_id}", sla=sla, **told)
    store.route(sla=sla, entry_id=entry_id, request=asked, pool="cpu", reason="test")
    [item] = store.claim("cpu", "w1", 1)
    event = EndEvent(**({"status": "finished", "usage": USAGE} | end))
    assert store.finish("cpu", "w1", item, event, "text")


def counted(store):
    return {k.decode(): int(v) for k, v in store.redis.hgetall(store.keys.promises).items()}


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        ({"ttft_ms": 100.0, "tpot_ms": 9.5}, {"realtime kept": 1, "realtime tokens": 5}),
        ({"ttft_ms": 100.0}, {"realtime kept": 1, "realtime tokens": 5}),
        ({"ttft_ms": 101.0, "tpot_ms": 9.5}, {"realtime ttft": 1}),
        ({"ttft_ms": 50.0, "tpot_ms": 11.0}, {"realtime tpot": 1}),
        ({"status": "failed", "code": "numeric_error"}, {"realtime numeric_error": 1}),
        ({"status": "expired", "code": "expired"}, {"realtime expired": 1}),
        ({"status": "failed", "code": "bad_request"}, {}),
        ({"status": "cancelled", "code": "cancelled"}, {}),
    ],
)
def test_an_end_counts_for_its_class(store, end, expected):
    run_to_end(store, **end)
    assert counted(store) == expected


def test_a_deadline_of_the_class_counts_from_arrival(store):
    run_to_end(store, "batch", age_ms=0)
    run_to_end(store, "batch", age_ms=61_000)
    assert counted(store) == {"batch kept": 1, "batch tokens": 5, "batch deadline": 1}


@pytest.mark.parametrize("key", ["sla", "promises", "ends", "rate:default"])
def test_a_key_of_another_type_in_the_place_of_a_count_fails_no_end(redis_url, store, key):
    store = WorkerStore(redis_url, Keys("lockstep"), tokens_per_min=100)
    store.redis.delete(f"lockstep:{key}")
    store.redis.set(f"lockstep:{key}", "what somebody put there")
    run_to_end(store)
    [job] = [store.job(key.decode().split(":")[-1]) for key in store.redis.keys("lockstep:job:*")]
    assert job["status"] == "finished"


def test_a_promise_that_nobody_can_read_is_none(store):
    store.redis.hset("lockstep:sla", "realtime", "{no JSON")
    run_to_end(store, ttft_ms=1e9)
    assert counted(store) == {"realtime kept": 1, "realtime tokens": 5}


def test_a_class_that_promises_nothing_keeps_it(store):
    run_to_end(store, "standard", ttft_ms=1e9)
    assert counted(store) == {"standard kept": 1, "standard tokens": 5}


def test_a_refusal_for_overload_is_a_promise_that_was_not_kept(store):
    entry_id = store.redis.xadd(store.keys.requests("realtime"), {"m": b"?"}).decode()
    store.redis.xreadgroup(GROUP, "router-0", {store.keys.requests("realtime"): ">"})
    end = EndEvent(status="failed", code="overloaded", error="wait", retry_after_s=7)
    told = {"sla": "realtime", "entry_id": entry_id, "tenant": "default", "body": b""}
    assert store.refuse(request_id="r1", end=end, **told) == "refused"
    assert counted(store) == {"realtime overloaded": 1}
    assert store.job("r1")["retry_after_s"] == 7
