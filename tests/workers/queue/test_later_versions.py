"""A pool beside nodes of a later version: what they say that it does not know disturbs nothing."""

import msgspec

from workers.wire import Request

STRANGE = [b"", b"pause", b"drain now", b"move", b"promote later", b"\xff\xfe", b"cancel"]


def with_field(node, request_id, **changes):
    """As if a later version had routed it."""
    key = node.keys.job(request_id)
    told = msgspec.msgpack.decode(node.redis.hget(key, "request"))
    node.redis.hset(key, "request", msgspec.msgpack.encode({**told, **changes}))
    node.redis.hset(key, "from_tomorrow", b"\xff\x00")


def test_messages_that_nobody_knows_leave_a_pool_listening(node, processes):
    """One of them once ended the thread that hears of cancellations."""
    processes("cpu", step_s=0.05)
    node.route("r1", max_tokens=2)
    node.until_ended("r1")
    for message in STRANGE:
        node.redis.publish(node.keys.control, message)
    node.route("r2", max_tokens=5000)
    node.until(lambda: node.status("r2") == "running")
    for message in (b"move r2", b"promote r2", b"pause r2 now"):
        node.redis.publish(node.keys.control, message)
    assert node.store.cancel("r2") == "cancelling"
    node.until_ended("r2")
    assert node.status("r2") == "cancelled"


def test_a_request_with_a_field_more_is_run_and_one_that_means_more_is_not(node, processes):
    """A new field changes no token; what does comes with another version."""
    processes("cpu")
    changes = {"r1": {"from_tomorrow": {"a": [1]}}, "r2": {"zz": None}, "r3": {"v": 2}}
    for request_id, changed in changes.items():
        node.route(request_id, pool="gpu")
        with_field(node, request_id, **changed)
        assert node.store.move(request_id, "cpu") == "moved"
    node.until_ended(*changes)
    assert [node.status(request_id) for request_id in changes] == ["finished", "finished", "failed"]
    assert node.store.job("r3")["code"] == "bad_record"


def test_a_request_keeps_its_fields_when_an_older_node_only_claims_it(node):
    node.route("r1")
    with_field(node, "r1", v=1, from_tomorrow=7)
    before = node.redis.hget(node.keys.job("r1"), "request")
    [claimed] = node.store.claim("cpu", "w", 1)
    assert isinstance(claimed.request, Request)
    assert node.redis.hget(node.keys.job("r1"), "request") == before
