"""The Python client: Redis is all it needs."""

import msgpack
import pytest
from redis.exceptions import ConnectionError as StoreAway

from ingest.client import Client
from tests.ingest.stub_node import Play, StubNode
from workers.store import Store
from workers.wire import EndEvent, Keys, TokenEvent


@pytest.fixture
def client(redis_url):
    return Client(redis_url, "lockstep")


@pytest.fixture
def node(redis_url, text):
    """A stub behind the store; there is no HTTP door."""
    with StubNode(Store(redis_url, Keys("lockstep")), text) as node:
        yield node


def test_a_request_goes_on_its_class_stream_with_its_fields(client):
    request_id = client.enqueue(prompt="Hello", sla="batch", max_tokens=3, seed=None)
    ((_, fields),) = client.store.redis.xrange("lockstep:requests:batch")
    body = {"v": 1, "id": request_id, "prompt": "Hello", "max_tokens": 3}
    assert msgpack.unpackb(fields[b"m"]) == body


def test_every_request_has_an_id_of_its_own(client):
    assert client.enqueue(prompt="x") != client.enqueue(prompt="x")


def test_a_class_that_does_not_exist_is_refused_at_once(client):
    with pytest.raises(ValueError, match="sla: must be one of realtime, standard, batch"):
        client.enqueue(prompt="x", sla="urgent")
    assert client.store.redis.keys("*") == []


def test_a_result_is_the_whole_text_with_its_end(client, node):
    end = client.result(client.enqueue(prompt="x", id="mine"), timeout_s=10)
    assert (end.status, end.text, end.finish_reason) == ("finished", " Paris, of course.", "stop")
    assert end.usage.output_tokens == 4
    assert client.job("mine")["pool"] == "cpu"


def test_a_stream_is_tokens_and_end(client, node):
    node.play = Play(end=EndEvent(status="finished", finish_reason="length", text="!"))
    events = list(client.stream(client.enqueue(prompt="x"), timeout_s=10))
    assert [type(event) for event in events] == [TokenEvent] * 4 + [EndEvent]
    assert "".join(event.text for event in events) == " Paris, of course.!"


def test_a_stream_begins_behind_an_entry(client, node):
    request_id = client.enqueue(prompt="x")
    client.result(request_id, timeout_s=10)
    events = list(client.stream(request_id, after="0-3", timeout_s=10))
    assert [event.text for event in events] == [".", ""]


def test_a_result_that_does_not_come_times_out(client):
    with pytest.raises(TimeoutError, match=r"nobody: nothing for 0\.05 s"):
        client.result("nobody", timeout_s=0.05)


def test_a_request_is_cancelled_wherever_it_is(client, node, wait_until):
    node.play = Play(pause_after=1)
    request_id = client.enqueue(prompt="x")
    wait_until(lambda: client.store.tokens(request_id))
    assert client.cancel(request_id) == "cancelling"
    assert client.result(request_id, timeout_s=10).status == "cancelled"
    assert client.cancel(request_id) == "ended"


def test_a_request_that_no_router_has_read_is_cancelled_too(client):
    request_id = client.enqueue(prompt="Hello")
    assert client.cancel(request_id, unseen=True) == "cancelled"
    assert client.result(request_id, timeout_s=10).status == "cancelled"


def test_a_result_is_found_although_the_stream_has_expired(client, node):
    request_id = client.enqueue(prompt="x")
    client.result(request_id, timeout_s=10)
    client.store.redis.delete(f"lockstep:tokens:{request_id}")
    assert client.result(request_id, timeout_s=0.05).text == " Paris, of course."
    assert [event.text for event in client.stream(request_id)] == [" Paris, of course."]


def test_a_request_that_the_store_has_lost_ends_too(client, node, wait_until, monkeypatch):
    monkeypatch.setattr("ingest.client.BLOCK_S", 0.2)
    node.play = Play(pause_after=1)
    request_id = client.enqueue(prompt="x")
    events = client.stream(request_id, timeout_s=20)
    next(events)
    client.store.redis.flushall()
    (end,) = events
    assert (end.status, end.code) == ("failed", "lost")


def test_a_store_that_does_not_answer_is_an_error(free_port):
    with pytest.raises(StoreAway):
        Client(f"redis://127.0.0.1:{free_port()}/0", "lockstep").enqueue(prompt="x")
