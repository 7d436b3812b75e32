"""A request between door and queue: accepted, routed, refused, cancelled, each in one step."""

import msgspec
import pytest
from redis.exceptions import ResponseError

from workers.wire import GROUP, EndEvent, Keys, PoolLoad, Request, SamplingParams, WebhookTarget
from workers.wire_fields import end_of
from workers.worker_store import WorkerStore

BAD = EndEvent(status="failed", code="bad_request", error="max_tokens: must be at least 1")
HOOK = WebhookTarget(url="http://127.0.0.1:1/hook")


@pytest.fixture
def store(redis_url):
    store = WorkerStore(redis_url, Keys("lockstep"))
    for sla in ("realtime", "standard", "batch"):
        store.redis.xgroup_create(store.keys.requests(sla), GROUP, id="0", mkstream=True)
    return store


def request(request_id="r1", **changes):
    fields = {
        "model": "m",
        "token_ids": (1, 2, 3),
        "arrival_ms": 1000,
        "params": SamplingParams(max_tokens=8),
    }
    return Request(id=request_id, **(fields | changes))


def add_entry(store, sla="standard", **fields):
    return store.redis.xadd(store.keys.requests(sla), fields or {"m": b"?"}).decode()


def read(store, sla="standard"):
    """The router's read: entries are pending after it."""
    return store.redis.xreadgroup(GROUP, "router-0", {store.keys.requests(sla): ">"})


def route(store, entry_id, **changes):
    return store.route(
        sla="standard", entry_id=entry_id, request=request(**changes), pool="cpu", reason="only"
    )


def refuse(store, entry_id, request_id="r1", **more):
    return store.refuse(
        sla="standard",
        entry_id=entry_id,
        request_id=request_id,
        tenant="default",
        end=BAD,
        body=b"raw",
        **more,
    )


def accepted(store, request_id="r1"):
    reply = store.accept(request_id=request_id, tenant="default", sla="standard", body=b"body")
    read(store)
    return reply


def queue(store, name="cpu"):
    return [item.decode() for item in store.redis.lrange(store.keys.queue(name), 0, -1)]


def without_expiry(store):
    return {key.decode() for key in store.redis.scan_iter() if store.redis.ttl(key) < 0}


RQ_QUEUES = "lockstep:rq:queues"  # kept by the pools' maintenance (WorkerStore.keep)
STREAMS = {f"lockstep:requests:{sla}" for sla in ("realtime", "standard", "batch")}


def test_an_accepted_request_lies_in_its_stream(store):
    reply = store.accept(request_id="r1", tenant="default", sla="standard", body=b"body")
    assert reply.is_new and reply.status == "accepted"
    [(entry_id, fields)] = store.redis.xrange(store.keys.requests("standard"))
    assert (entry_id.decode(), fields) == (reply.entry_id, {b"m": b"body"})
    assert store.job("r1")["status"] == "accepted"


def test_accepting_again_gives_the_first_one(store):
    first = store.accept(request_id="r1", tenant="default", sla="standard", body=b"one")
    again = store.accept(request_id="r1", tenant="default", sla="batch", body=b"two")
    assert (again.is_new, again.entry_id, again.status) == (False, first.entry_id, "accepted")
    assert store.redis.xlen(store.keys.requests("standard")) == 1
    assert store.redis.xlen(store.keys.requests("batch")) == 0


def test_routing_moves_it_from_stream_to_queue(store):
    entry_id = accepted(store).entry_id
    assert route(store, entry_id) == "routed"
    assert queue(store) == ["r1"]
    assert store.redis.xlen(store.keys.requests("standard")) == 0
    assert store.redis.xpending(store.keys.requests("standard"), GROUP)["pending"] == 0
    job = store.job("r1")
    assert (job["status"], job["pool"], job["reason"], job["prompt_tokens"]) == (
        "queued",
        "cpu",
        "only",
        3,
    )
    assert msgspec.msgpack.decode(job["request"], type=Request) == request()
    assert store.redis.lrange(store.keys.bell("cpu"), 0, -1) == [b"1"]


def test_a_request_without_the_door_is_routed_too(store):
    entry_id = add_entry(store)
    read(store)
    assert route(store, entry_id) == "routed"
    assert store.job("r1")["entry"] == entry_id


def test_an_entry_is_routed_by_one_router_only(store):
    entry_id = accepted(store).entry_id
    assert [route(store, entry_id), route(store, entry_id)] == ["routed", "not-mine"]
    assert queue(store) == ["r1"]


def test_the_second_request_of_an_id_does_not_run(store):
    first, second = add_entry(store), add_entry(store)
    read(store)
    assert [route(store, first), route(store, second)] == ["routed", "duplicate"]
    assert queue(store) == ["r1"]
    assert store.redis.xlen(store.keys.requests("standard")) == 0


def test_an_id_that_the_door_took_is_not_overtaken(store):
    """A plain XADD of the same id, routed first, must not take the accepted request's place."""
    mine = accepted(store).entry_id
    other = add_entry(store)
    read(store)
    assert [route(store, other), route(store, mine)] == ["duplicate", "routed"]


def test_one_ring_is_kept_however_many_are_routed(store):
    for i in range(3):
        entry_id = add_entry(store)
        read(store)
        route(store, entry_id, request_id=f"r{i}")
    assert store.redis.llen(store.keys.bell("cpu")) == 1


def test_cancelled_in_the_stream_is_not_routed(store):
    entry_id = accepted(store).entry_id
    assert store.cancel("r1") == "cancelled"
    assert route(store, entry_id) == "duplicate"
    assert queue(store) == []
    assert store.job("r1")["status"] == "cancelled"


def test_cancelled_in_the_queue_leaves_it(store):
    route(store, accepted(store).entry_id)
    assert store.cancel("r1") == "cancelled"
    assert queue(store) == []
    [(entry_id, end)] = store.tokens("r1")
    assert (entry_id, end.status, end.code) == ("1-0", "cancelled", "cancelled")
    assert store.redis.zcard(store.keys.active) == 0


@pytest.mark.parametrize(("prepare", "expected"), [([], "unknown"), (["r1"], "ended")])
def test_cancel_of_what_is_not_there(store, prepare, expected):
    for request_id in prepare:
        accepted(store, request_id)
        store.cancel(request_id)
    assert store.cancel("r1") == expected


def test_a_request_that_nobody_has_read_is_cancelled_by_taking_its_id(store):
    """A plain XADD leaves no trace but its entry."""
    entry_id = add_entry(store)
    assert store.cancel("r1", unseen=True) == "cancelled"
    read(store)
    assert route(store, entry_id) == "duplicate"
    assert (queue(store), store.job("r1")["status"]) == ([], "cancelled")
    assert [end.status for _, end in store.tokens("r1")] == ["cancelled"]
    assert store.redis.ttl(store.keys.job("r1")) > 0
    assert store.cancel("r1", unseen=True) == "ended"


def test_a_running_request_is_cancelled_by_its_pool(store):
    route(store, accepted(store).entry_id)
    store.redis.hset(store.keys.job("r1"), "status", "running")
    listener = store.redis.pubsub(ignore_subscribe_messages=True)
    listener.subscribe(store.keys.control)
    listener.get_message(timeout=5)
    assert store.cancel("r1") == "cancelling"
    assert listener.get_message(timeout=5)["data"] == b"cancel r1"
    assert store.job("r1")["cancel"] == 1
    listener.close()


def test_a_refused_entry_fails_with_its_reason(store):
    entry_id = add_entry(store)
    read(store)
    assert refuse(store, entry_id, dead=True) == "refused"
    job = store.job("r1")
    assert (job["status"], job["code"], job["error"]) == ("failed", "bad_request", BAD.error)
    assert store.tokens("r1")[-1][1] == msgspec.structs.replace(BAD, sla="standard")
    [(_, letter)] = store.redis.xrange(store.keys.dead)
    assert (letter[b"id"], letter[b"reason"], letter[b"body"]) == (
        b"r1",
        BAD.error.encode(),
        b"raw",
    )
    assert store.redis.xlen(store.keys.requests("standard")) == 0


def test_a_refused_entry_that_the_door_took_fails_its_job(store):
    assert refuse(store, accepted(store).entry_id) == "refused"
    assert store.job("r1")["status"] == "failed"


def test_refusing_does_not_touch_the_first_request_of_the_id(store):
    route(store, accepted(store).entry_id)
    second = add_entry(store)
    read(store)
    assert refuse(store, second, dead=True) == "duplicate"
    assert store.job("r1")["status"] == "queued"
    assert store.redis.xlen(store.keys.dead) == 1


def test_refusing_twice_does_nothing(store):
    entry_id = add_entry(store)
    read(store)
    assert [refuse(store, entry_id), refuse(store, entry_id)] == ["refused", "not-mine"]


@pytest.mark.parametrize(
    ("events", "queued"),
    [((), ["wh-r1-1"]), (("failed",), ["wh-r1-1"]), (("finished", "expired"), [])],
)
def test_a_webhook_is_queued_when_it_wants_this_status(store, events, queued):
    entry_id = add_entry(store)
    read(store)
    refuse(store, entry_id, webhook=msgspec.structs.replace(HOOK, events=events))
    assert queue(store, "webhooks") == queued
    hook = store.redis.hgetall(store.keys.webhook("r1"))
    assert hook.get(b"url") == (HOOK.url.encode() if queued else None)


def test_a_cancelled_request_posts_its_webhook(store):
    entry_id = add_entry(store)
    read(store)
    route(store, entry_id, webhook=HOOK)
    store.cancel("r1")
    assert queue(store, "webhooks") == ["wh-r1-1"]


def test_the_rq_jobs_are_readable_by_rq(store):
    from rq.job import Job

    from workers.queue.serializer import MsgpackSerializer

    entry_id = add_entry(store)
    read(store)
    route(store, entry_id, webhook=HOOK)
    job = Job.fetch("r1", connection=store.redis, serializer=MsgpackSerializer)
    assert (job.func_name, job.args, job.kwargs) == ("workers.jobs.generate", ["r1"], {})
    assert (job.get_status(), job.origin, job.timeout) == ("queued", "cpu", -1)
    seconds, _micros = store.redis.time()
    assert abs(job.enqueued_at.timestamp() - seconds) < 60
    store.cancel("r1")
    assert Job.fetch("r1", connection=store.redis, serializer=MsgpackSerializer).is_canceled
    hook = Job.fetch("wh-r1-1", connection=store.redis, serializer=MsgpackSerializer)
    assert (hook.func_name, hook.args) == ("workers.jobs.deliver", ["r1"])


def test_everything_has_an_expiry(store):
    entry_id = add_entry(store)
    read(store)
    route(store, entry_id, webhook=HOOK)
    refused = add_entry(store)
    read(store)
    refuse(store, refused, request_id="r2", dead=True)
    store.cancel("r1")
    kept = {RQ_QUEUES, *STREAMS, "lockstep:rq:queue:webhooks", "lockstep:rq:canceled:cpu"}
    assert without_expiry(store) <= kept


def test_results_expire_after_their_time(redis_url):
    store = WorkerStore(redis_url, Keys("lockstep"), result_ttl_s=100)
    store.accept(request_id="r1", tenant="default", sla="standard", body=b"")
    store.cancel("r1")
    assert 0 < store.redis.ttl(store.keys.job("r1")) <= 100
    assert 0 < store.redis.ttl(store.keys.tokens("r1")) <= 100


def test_the_prefix_is_on_every_key(redis_url):
    store = WorkerStore(redis_url, Keys("{t7}"))
    store.accept(request_id="r1", tenant="default", sla="standard", body=b"")
    store.cancel("r1")
    assert {key.decode()[:5] for key in store.redis.scan_iter()} == {"{t7}:"}


def test_with_memory_full_a_hand_over_is_whole_or_refused(store):
    """noeviction: what is accepted goes on to its queue; nothing new is accepted."""
    entry_id = accepted(store).entry_id
    store.redis.config_set("maxmemory", 1)
    try:
        with pytest.raises(ResponseError):
            store.accept(request_id="r2", tenant="default", sla="standard", body=b"")
        assert route(store, entry_id) == "routed"
        [item] = store.claim("cpu", "w1", 8)
        assert store.finish("cpu", "w1", item, EndEvent(status="finished"), "text")
    finally:
        store.redis.config_set("maxmemory", 0)
    assert store.job("r1")["text"] == "text"
    assert store.job("r2") is None
    assert store.redis.xlen(store.keys.requests("standard")) == 0


def test_the_end_is_told_alike_by_hash_and_stream(store):
    entry_id = add_entry(store)
    read(store)
    refuse(store, entry_id)
    assert end_of(store.job("r1")) == store.tokens("r1")[-1][1]


def test_a_pool_is_known_by_its_last_report(store):
    load = PoolLoad(pool="cpu", worker="w1", state="ready", running=2)
    store.report(PoolLoad(pool="cpu", worker="w1", state="loading"))
    store.report(load)
    assert store.loads() == [load]


def test_a_silent_pool_is_gone(store):
    store.report(PoolLoad(pool="cpu", worker="w1", state="ready"))
    store.redis.delete(store.keys.pool("cpu", "w1"))
    assert store.loads() == []
    assert store.redis.scard(store.keys.pools) == 0


def test_a_lost_reply_is_never_sent_again_by_the_client(store):
    assert store.redis.get_retry().get_retries() == 0
    assert store.blocking(7).connection_pool.connection_kwargs["socket_timeout"] == 12
