"""A client that goes away cancels what it waited for, and nothing else; jobs survive."""

import json
import socket
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.ingest.conftest import running
from tests.ingest.stub_node import Play, StubNode

HELLO = [{"role": "user", "content": "Hello"}]


def open_request(door, path="/v1/chat/completions", **body) -> socket.socket:
    """A POST on a socket of our own, so that we can drop it."""
    raw = json.dumps({"messages": HELLO, **body}).encode()
    client = socket.create_connection(("127.0.0.1", door.desk.settings.port), timeout=10)
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(raw)}\r\n\r\n"
    client.sendall(head.encode() + raw)
    return client


def status_of(door, request_id):
    job = door.desk.store.job(request_id)
    return job and job["status"]


def read_until(client: socket.socket, wanted: bytes) -> bytes:
    seen = b""
    while wanted not in seen:
        piece = client.recv(4096)
        assert piece, seen
        seen += piece
    return seen


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_a_running_request_cancels_it(door, node, wait_until, stream):
    node.play = Play(pause_after=2)
    client = open_request(door, id="left", stream=stream)
    wait_until(lambda: len(door.desk.store.tokens("left")) == 2)
    client.close()
    wait_until(lambda: status_of(door, "left") == "cancelled")
    assert len([e for i, e in door.desk.store.tokens("left") if i.startswith("0-")]) == 2


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_a_waiting_request_cancels_it(door, wait_until, stream):
    """Nobody routes here: the request is still on its stream."""
    client = open_request(door, id="left", stream=stream)
    wait_until(lambda: status_of(door, "left") == "accepted")
    wait_until(lambda: door.desk.reader.listeners)
    client.close()
    wait_until(lambda: status_of(door, "left") == "cancelled")


def test_a_reset_connection_counts_as_left(door, node, wait_until):
    node.play = Play(pause_after=1)
    client = open_request(door, id="reset", stream=True)
    read_until(client, b" Paris")
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    client.close()
    wait_until(lambda: status_of(door, "reset") == "cancelled")


def test_nobody_listens_any_more_after_a_client_left(door, node, wait_until):
    node.play = Play(pause_after=1)
    client = open_request(door, id="left", stream=True)
    read_until(client, b" Paris")
    client.close()
    wait_until(lambda: not door.desk.reader.listeners)
    assert not door.desk.visitors.waiting
    assert not door.desk.visitors.brought


def test_one_of_two_clients_may_leave(door, node, wait_until):
    node.play = Play(pause_after=1)
    first = open_request(door, id="shared", stream=True)
    read_until(first, b" Paris")
    second = open_request(door, id="shared", stream=True)
    read_until(second, b" Paris")
    first.close()
    wait_until(lambda: len(door.desk.reader.listeners) == 1)
    node.go.set()
    assert b"[DONE]" in read_until(second, b"[DONE]")
    assert status_of(door, "shared") == "finished"
    second.close()


def test_a_visitor_of_a_job_does_not_cancel_it(door, node, wait_until):
    node.play = Play(pause_after=1)
    door.http.post("/v1/jobs", json={"id": "job", "messages": HELLO})
    visitor = open_request(door, id="job", stream=True)
    read_until(visitor, b" Paris")
    visitor.close()
    wait_until(lambda: not door.desk.reader.listeners)
    node.go.set()
    wait_until(lambda: status_of(door, "job") == "finished")


def test_a_job_survives_the_client_that_follows_it(door, node, wait_until):
    node.play = Play(pause_after=1)
    door.http.post("/v1/jobs", json={"id": "job", "messages": HELLO})
    with door.http.stream("GET", "/v1/jobs/job/events") as response:
        assert next(response.iter_lines()) == "id: 0-1"
    wait_until(lambda: not door.desk.reader.listeners)
    node.go.set()
    wait_until(lambda: status_of(door, "job") == "finished")


def test_a_complete_answer_is_not_cancelled_when_its_client_leaves(door, node, wait_until):
    client = open_request(door, id="done", stream=True)
    read_until(client, b"[DONE]")
    client.close()
    wait_until(lambda: not door.desk.reader.listeners)
    assert status_of(door, "done") == "finished"


def test_two_hundred_streams_are_served_at_once(settings, text, wait_until):
    """Each gets all of its tokens, over one connection to the store."""
    with (
        running(settings.model_copy(update={"max_queue": 1000})) as door,
        StubNode(door.desk.store, text) as node,
    ):
        node.play = Play(pause_after=0)
        clients = [open_request(door, id=f"s{i}", stream=True) for i in range(200)]
        wait_until(lambda: len(door.desk.reader.listeners) == 200)
        connections = door.desk.store.redis.client_list()
        assert len([c for c in connections if c["cmd"] == "xread"]) == 1
        node.go.set()
        with ThreadPoolExecutor(200) as pool:
            answers = list(pool.map(lambda client: read_until(client, b"[DONE]"), clients))
        assert {4 + 2} == {answer.count(b"delta") for answer in answers}
        for client in clients:
            client.close()
