"""A session's requests at the front door: its name in body or header, and what the answer says."""

import json

import httpx
import msgpack
import pytest

from ingest.client import Client
from ingest.desk import _packed
from router.admit import Door, admit
from tests.ingest.stub_node import Play
from workers.wire import EndEvent

HELLO = [{"role": "user", "content": "What is the capital of France?"}]


def chat(door, headers=None, **fields):
    body = {"messages": HELLO, **fields}
    return door.http.post("/v1/chat/completions", json=body, headers=headers or {})


def test_a_session_is_named_in_the_body(door, node):
    answer = chat(door, session_id="talk", session_mode="append").json()
    assert answer["lockstep"]["session_id"] == "talk"
    (request,) = node.requests
    assert (request.session_id, request.session_mode) == ("talk", "append")
    assert (request.messages, request.token_ids) == (tuple(HELLO), ())


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/jobs"])
def test_a_session_is_named_in_a_header(door, node, path):
    body = {"messages": HELLO}
    assert door.http.post(path, json=body, headers={"X-Session-ID": "talk"}).status_code < 300
    assert chat(door, {"X-Session-ID": "other"}, session_id="mine").status_code == 200
    assert [request.session_id for request in node.requests] == ["talk", "mine"]


def test_a_completion_may_belong_to_a_session(door, node):
    body = {"prompt": "The capital of France is", "session_id": "talk"}
    assert door.http.post("/v1/completions", json=body).status_code == 200
    (request,) = node.requests
    assert request.session_id == "talk" and request.token_ids


@pytest.mark.parametrize("name", ["../../etc", "a/b", "", "a--b", "x" * 65, 5])
def test_what_is_no_name_is_refused(door, name):
    answer = chat(door, session_id=name)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, "session_id")
    assert error["message"].startswith("session_id: must be 1 to 64 of A-Z, a-z, 0-9, _ and -")


def test_a_mode_without_a_session_is_refused(door):
    error = chat(door, session_mode="append").json()["error"]
    assert error["message"] == "session_mode: goes with session_id only"


def test_what_was_not_computed_again_is_said(door, node, monkeypatch):
    """With and without a session: a prefix may be another request's, too."""
    finish = node.store.finish

    def with_cached(pool, worker, item, end, text):
        usage = end.usage.__class__(prompt_tokens=30, output_tokens=4, cached_tokens=17)
        return finish(pool, worker, item, end.__class__(status="finished", usage=usage), text)

    monkeypatch.setattr(node.store, "finish", with_cached)
    details = {"cached_tokens": 17}
    assert chat(door).json()["usage"]["prompt_tokens_details"] == details
    answer = chat(door, session_id="talk").json()
    assert answer["usage"]["prompt_tokens_details"] == details
    assert answer["lockstep"]["cached_tokens"] == 17
    stream = chat(door, stream=True, stream_options={"include_usage": True}).text
    last = json.loads(stream.strip().split("\n\n")[-2].removeprefix("data: "))
    assert last["usage"]["prompt_tokens_details"] == details
    body = {"prompt": "x", "stream": False}
    completion = door.http.post("/v1/completions", json=body).json()
    assert completion["usage"]["prompt_tokens_details"] == details


def test_where_a_history_left_the_log_is_said(door, node, wait_until):
    node.play = Play(pause_after=1)
    door.http.post("/v1/jobs", json={"messages": HELLO, "session_id": "talk", "id": "r"})
    store = node.store
    wait_until(lambda: store.tokens("r"))  # its prompt is composed
    store.redis.hset(store.keys.job("r"), "forked_at", 12)  # as WorkerStore.compose does
    node.go.set()
    wait_until(lambda: door.http.get("/v1/jobs/r").json()["status"] == "finished")
    job = door.http.get("/v1/jobs/r").json()
    assert (job["session_id"], job["forked_at"]) == ("talk", 12)
    events = door.http.get("/v1/jobs/r/events").text
    end = json.loads(events.strip().split("data: ")[-1])
    assert (end["session_id"], end["forked_at"]) == ("talk", 12)


def test_an_answer_that_the_session_lost_says_so(door, node):
    reason = "session_id: this turn was not saved: the disk is full"
    node.play = Play(
        end=EndEvent(
            status="finished", finish_reason="stop", code="session_not_saved", error=reason
        )
    )
    answer = chat(door, session_id="talk").json()
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["lockstep"]["error"] == {"message": reason, "code": "session_not_saved"}


def test_no_session_no_word_of_it(door, node):
    assert "session_id" not in chat(door).json()["lockstep"]


FIELDS = [
    {"messages": HELLO, "session_id": "s", "session_mode": "history"},
    {"messages": HELLO, "session_id": "s", "chat_template_kwargs": {"enable_thinking": False}},
    {"messages": HELLO, "chat_template_kwargs": {"enable_thinking": False}},
    {"prompt": "Hello", "session_id": "s"},
    {"prompt": "Hello"},
]


@pytest.mark.parametrize("fields", FIELDS, ids=lambda fields: " ".join(fields))
def test_the_router_admits_what_the_door_did(door, fields):
    """The same request, from what the door puts on the stream."""
    text = door.desk.text_model()
    asked = {**fields, "id": "r"}
    request = admit(asked, Door(text, 1000), sla=None, entry_id=None, plain=False)
    body = msgpack.unpackb(_packed(asked, request))
    again = admit(body, Door(text, 1000), sla="standard", entry_id="1000-0", plain=False)
    assert again == request


def test_the_client_names_a_session(door, node):
    client = Client(node.store.url, "lockstep")
    request_id = client.enqueue(messages=HELLO, session_id="talk")
    end = client.result(request_id, timeout_s=10)
    assert (end.session_id, end.forked_at) == ("talk", None)
    assert node.requests[0].session_id == "talk"


def test_the_schema_names_the_fields(door):
    response: httpx.Response = door.http.get("/v1/schema")
    assert {"session_id", "session_mode"} <= response.json()["properties"].keys()


def test_requests_that_wait_for_their_session_fill_the_queue(door, node):
    """Else one conversation could fill the store."""
    door.desk.store.redis.zadd(door.desk.keys.waiting, {f"w{n}": n for n in range(100_000)})
    door.desk._pulse = None
    answer = chat(door, session_id="talk")
    assert (answer.status_code, answer.json()["error"]["code"]) == (429, "queue_full")
