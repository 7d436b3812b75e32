"""A request gets another class wherever it is, in one step, and nothing else of it changes."""

import msgspec
import pytest

from workers.store import Promoted
from workers.wire import GROUP, EndEvent, Keys, Request, SamplingParams
from workers.worker_store import WorkerStore

DONE = EndEvent(status="finished", finish_reason="stop")


@pytest.fixture
def store(redis_url):
    store = WorkerStore(redis_url, Keys("lockstep"))
    for sla in store.keys.classes:
        store.redis.xgroup_create(store.keys.requests(sla), GROUP, id="0", mkstream=True)
    return store


def accept(store, request_id="r1", sla="batch"):
    return store.accept(request_id=request_id, tenant="default", sla=sla, body=b"body")


def read(store, sla="batch"):
    return store.redis.xreadgroup(GROUP, "router-0", {store.keys.requests(sla): ">"})


def route(store, request_id="r1", sla="batch", **changes):
    """As the router does with an accepted request."""
    entry_id = accept(store, request_id, sla).entry_id
    read(store, sla)
    params = SamplingParams(max_tokens=8)
    fields = {"model": "m", "token_ids": (1,), "arrival_ms": 1000, "params": params, "sla": sla}
    request = Request(id=request_id, **(fields | changes))
    return store.route(sla=sla, entry_id=entry_id, request=request, pool="cpu", reason="test")


def stream(store, sla):
    return store.redis.xrange(store.keys.requests(sla))


def queue(store):
    return [item.decode() for item in store.redis.lrange(store.keys.queue("cpu"), 0, -1)]


def test_a_request_that_nobody_has_read_changes_streams_and_keeps_its_arrival(store):
    entry_id = accept(store).entry_id
    assert store.promote("r1", "realtime").result == "promoted"
    assert stream(store, "batch") == []
    [(moved, fields)] = stream(store, "realtime")
    assert fields == {b"m": b"body", b"arrived": entry_id.encode()}
    assert (store.job("r1")["entry"], store.job("r1")["sla"]) == (moved.decode(), "realtime")
    assert store.promote("r1", "standard").result == "demoted"
    assert stream(store, "standard")[0][1] == fields


def test_a_router_that_has_read_it_finds_that_it_is_no_longer_its_own(store):
    entry_id = accept(store).entry_id
    read(store)
    store.promote("r1", "realtime")
    params = SamplingParams(max_tokens=8)
    old = Request(id="r1", model="m", token_ids=(1,), arrival_ms=1, params=params, sla="batch")
    told = {"request": old, "pool": "cpu", "reason": "test"}
    assert store.route(sla="batch", entry_id=entry_id, **told) == "not-mine"
    [(moved, _)] = read(store, "realtime")[store.keys.requests("realtime").encode()][0]
    new = msgspec.structs.replace(old, sla="realtime")
    told["request"] = new
    assert store.route(sla="realtime", entry_id=moved.decode(), **told) == "routed"


def test_one_that_waits_in_a_queue_goes_to_its_front_and_back(store):
    for request_id in ("r1", "r2", "r3"):
        route(store, request_id)
    assert store.promote("r3", "realtime") == Promoted("promoted", "realtime", "batch")
    assert queue(store) == ["r3", "r1", "r2"]
    assert store.promote("r3", "batch").result == "demoted"
    assert queue(store) == ["r1", "r2", "r3"]


def test_its_own_deadline_counts_in_its_new_class_as_if_it_had_come_in_it(store):
    for request_id, deadline_ms in (("r1", 9_000_000), ("r2", 20_000)):
        route(store, request_id, deadline_ms=deadline_ms)
        route(store, f"{request_id}-s", sla="standard", deadline_ms=deadline_ms)
        store.promote(request_id, "standard")
        promoted, born = store.job(request_id)["rank"], store.job(f"{request_id}-s")["rank"]
        assert promoted == born
    assert int(store.job("r2")["rank"]) < int(store.job("r1")["rank"])


def test_a_worker_claims_it_with_the_class_that_it_has_now(store):
    route(store)
    store.promote("r1", "realtime")
    [item] = store.claim("cpu", "w1", 1)
    assert item.request.sla == "realtime"
    assert item.request.arrival_ms == 1000


def test_one_that_waits_for_its_session_keeps_its_turn(store):
    route(store, "r1", session_id="s")
    route(store, "r2", session_id="s")
    route(store, "r3", session_id="s")
    assert store.promote("r3", "realtime").result == "promoted"
    claimed = []
    for _ in range(3):
        [item] = store.claim("cpu", "w1", 8)
        claimed.append((item.job_id, item.request.sla))
        store.finish("cpu", "w1", item, DONE, "text")
    assert claimed == [("r1", "batch"), ("r2", "batch"), ("r3", "realtime")]


def test_what_its_session_let_in_late_takes_no_turn_from_another_when_it_is_promoted(store):
    """Its rank was counted from its arrival again: as if it had never waited for its session."""
    route(store, "r1", session_id="s")
    route(store, "r2", session_id="s")
    [item] = store.claim("cpu", "w1", 1)
    store.finish("cpu", "w1", item, DONE, "text")
    waited_ms = store.job("r2")["session_wait_ms"]
    route(store, "r3", arrival_ms=2000)
    store.promote("r2", "realtime")
    store.promote("r3", "realtime")
    assert store.job("r2")["rank"] - store.job("r3")["rank"] == waited_ms - 1000
    assert queue(store) == ["r3", "r2"]


def test_the_pool_of_one_that_runs_is_told_at_once_and_by_every_beat(store):
    route(store)
    [item] = store.claim("cpu", "w1", 1)
    channel = store.redis.pubsub(ignore_subscribe_messages=True)
    channel.subscribe(store.keys.control)
    while channel.get_message(timeout=0.1) is None and not channel.subscribed:
        pass
    assert store.beat("cpu", "w1", [item]).classes == {"r1": "batch"}
    assert store.promote("r1", "realtime").result == "promoted"
    messages = iter(lambda: channel.get_message(timeout=5), None)
    assert next(messages)["data"] == b"promote r1 realtime"
    assert store.beat("cpu", "w1", [item]).classes == {"r1": "realtime"}


def test_a_taken_over_request_has_the_class_that_it_was_given(store):
    route(store)
    [item] = store.claim("cpu", "w1", 1)
    store.promote("r1", "realtime")
    store.hand_back("cpu", [item])
    assert store.claim("cpu", "w2", 1)[0].request.sla == "realtime"


def test_its_end_tells_and_counts_the_class_that_it_had(store):
    route(store)
    [item] = store.claim("cpu", "w1", 1)
    store.promote("r1", "realtime")
    store.finish("cpu", "w1", item, DONE, "text")
    [(_, end)] = store.tokens("r1")
    assert end.sla == "realtime"
    assert store.redis.hgetall(store.keys.ends) == {b"realtime finished": b"1"}


def test_what_has_ended_what_nobody_knows_and_what_has_the_class_is_said(store):
    assert store.promote("r1", "realtime").result == "unknown"
    route(store)
    assert store.promote("r1", "batch").result == "same"
    store.cancel("r1")
    assert store.promote("r1", "realtime").result == "ended"
    assert store.job("r1")["sla"] == "batch"
    with pytest.raises(ValueError, match="sla: must be one of realtime, standard, batch, got 'no'"):
        store.promote("r1", "no")
