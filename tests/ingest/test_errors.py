"""Whatever is wrong with a request, the answer is one OpenAI-style error that names the field."""

import contextlib
import errno
import os
import resource
import socket
import threading
import time

import httpx
import openai
import pytest
from redis import Redis
from redis.exceptions import RedisError

from tests.ingest.conftest import running

HELLO = [{"role": "user", "content": "Hello"}]
CHAT = "/v1/chat/completions"


def error_of(response):
    assert {"error"} == response.json().keys()
    error = response.json()["error"]
    assert {"message", "type", "param", "code"} == error.keys()
    return error


BAD_FIELDS = [  # path, what is wrong, status, param
    (CHAT, {"messages": HELLO, "model": "gpt-4"}, 404, "model"),
    (CHAT, {}, 400, "messages"),
    (CHAT, {"messages": []}, 400, "messages"),
    (CHAT, {"messages": "Hello"}, 400, "messages"),
    (CHAT, {"messages": [{"role": "user"}]}, 400, "messages[0].content"),
    (CHAT, {"messages": HELLO, "prompt": "x"}, 400, "prompt"),
    (CHAT, {"messages": HELLO, "stream": "yes"}, 400, "stream"),
    (CHAT, {"messages": HELLO, "stream_options": {}}, 400, "stream_options"),
    (CHAT, {"messages": HELLO, "stream": True, "stream_options": 1}, 400, "stream_options"),
    (CHAT, {"messages": HELLO, "max_tokens": -1}, 400, "max_tokens"),
    (CHAT, {"messages": HELLO, "max_tokens": 10**9}, 400, "max_tokens"),
    (CHAT, {"messages": HELLO, "max_tokens": "many"}, 400, "max_tokens"),
    (CHAT, {"messages": HELLO, "temperature": 9}, 400, "temperature"),
    (CHAT, {"messages": HELLO, "n": 1000}, 400, "n"),
    (CHAT, {"messages": HELLO, "tools": [{"type": "function"}]}, 400, "tools[0].function"),
    (CHAT, {"messages": HELLO, "sla": "urgent"}, 400, "sla"),
    (CHAT, {"messages": HELLO, "id": "a b"}, 400, "id"),
    (CHAT, {"messages": HELLO, "id": 7}, 400, "id"),
    (CHAT, {"messages": HELLO, "deadline_ms": 0}, 400, "deadline_ms"),
    (CHAT, {"messages": HELLO, "session_id": "../s"}, 400, "session_id"),
    ("/v1/completions", {"prompt": ""}, 400, "prompt"),
    ("/v1/completions", {"prompt": "a " * 6000}, 400, "prompt"),
    ("/v1/completions", {"prompt": "x", "messages": HELLO}, 400, "messages"),
    ("/v1/jobs", {}, 400, "prompt"),
    ("/v1/jobs", {"prompt": "x", "webhook": {"url": "http://10.0.0.1/"}}, 400, "webhook.url"),
    ("/v1/jobs", {"prompt": "x", "webhook": "here"}, 400, "webhook"),
    ("/v1/jobs", {"token_ids": [10**6]}, 400, "token_ids[0]"),
    ("/v1/jobs", {"prompt": "x", "metadata": {"big": 10**30}}, 400, "metadata['big']"),
    ("/v1/tokenize", {}, 400, "prompt"),
]


def test_each_bad_field_is_named(door):
    """And nothing of it reaches a stream."""
    for path, body, status, param in BAD_FIELDS:
        response = door.http.post(path, json=body)
        error = error_of(response)
        assert (status, param) == (response.status_code, error["param"]), (body, error)
        assert error["message"].startswith(param), error
        assert error["type"] == "invalid_request_error"
    assert door.desk.store.redis.keys("lockstep:requests:*") == []


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"[]",
        b'"text"',
        b"null",
        b'{"a": NaN}',
        b'{"a": "\xff"}',
        b'{"a": "\\ud800"}',
    ],
    ids=["empty", "cut", "list", "string", "null", "nan", "utf8", "surrogate"],
)
def test_a_body_that_is_no_json_object_is_refused(door, raw):
    for path in (CHAT, "/v1/completions", "/v1/jobs", "/v1/tokenize"):
        response = door.http.post(path, content=raw)
        assert (response.status_code, error_of(response)["code"]) == (400, "invalid_json")


def test_a_number_too_big_in_a_field_nobody_reads_is_refused(door):
    response = door.http.post("/v1/jobs", json={"prompt": "x", "unknown": 10**40})
    assert (response.status_code, error_of(response)["code"]) == (400, "bad_request")


def test_a_body_of_100_mb_costs_nothing(door):
    """Refused by its declared length; the client still sees why."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    body = b"x" * 1_000_000
    response = door.http.post(
        CHAT, content=(body for _ in range(100)), headers={"Content-Length": "100000000"}
    )
    assert (response.status_code, error_of(response)["code"]) == (413, "body_too_large")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 30_000  # KiB


def test_a_body_that_hides_its_length_is_refused_while_it_is_read(door):
    """Chunked transfer: no length is declared."""
    body = b"x" * 1_000_000
    response = door.http.post(CHAT, content=(body for _ in range(100)))
    assert (response.status_code, error_of(response)["code"]) == (413, "body_too_large")


def test_a_refused_upload_that_stops_in_the_middle_harms_nobody(door):
    with contextlib.closing(socket.create_connection(("127.0.0.1", door.desk.settings.port))) as s:
        s.sendall(b"POST /v1/jobs HTTP/1.1\r\nHost: [::1]\r\nContent-Length: 99999999\r\n\r\n{")
        assert s.recv(12) == b"HTTP/1.1 413"
    assert door.http.get("/healthz").status_code == 200


def test_a_client_that_leaves_while_it_sends_its_body_harms_nobody(door, capfd):
    with contextlib.closing(socket.create_connection(("127.0.0.1", door.desk.settings.port))) as s:
        s.sendall(b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n{")
    assert door.http.get("/healthz").status_code == 200
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize(
    "method, path, status, code",
    [
        ("GET", "/v1/nothing", 404, "not_found"),
        ("GET", "/v1/models/", 404, "not_found"),
        ("POST", "/", 405, "method_not_allowed"),
        ("GET", CHAT, 405, "method_not_allowed"),
        ("PUT", "/v1/jobs/x", 405, "method_not_allowed"),
        ("DELETE", "/metrics", 405, "method_not_allowed"),
    ],
)
def test_places_that_do_not_exist_answer_with_an_error_object(door, method, path, status, code):
    response = door.http.request(method, path)
    assert (status, code) == (response.status_code, error_of(response)["code"])
    assert status != 405 or response.headers["allow"]


def test_the_openai_client_raises_its_own_errors(door):
    with pytest.raises(openai.NotFoundError) as caught:
        door.openai.chat.completions.create(model="gpt-4", messages=HELLO)
    assert (caught.value.param, caught.value.code) == ("model", "model_not_found")
    with pytest.raises(openai.BadRequestError) as caught:
        door.openai.chat.completions.create(model="tiny", messages=HELLO, temperature=3)
    assert caught.value.param == "temperature"


def test_a_full_queue_answers_429_and_when_to_come_back(settings):
    with running(settings.model_copy(update={"max_queue": 1})) as door:
        assert door.http.post("/v1/jobs", json={"prompt": "x"}).status_code == 202
        door.desk._pulse = None  # as if the quarter of a second had passed
        response = door.http.post("/v1/jobs", json={"prompt": "x"})
        assert (response.status_code, error_of(response)["code"]) == (429, "queue_full")
        assert int(response.headers["retry-after"]) > 0
        assert door.desk.store.redis.xlen("lockstep:requests:standard") == 1


def test_without_the_store_requests_get_503_and_the_door_lives(settings, free_port):
    away = settings.model_copy(update={"redis_url": f"redis://127.0.0.1:{free_port()}/0"})
    with running(away) as door:
        for method, path in [("POST", "/v1/jobs"), ("GET", "/v1/jobs/x"), ("DELETE", "/v1/jobs/x")]:
            response = door.http.request(method, path, json={"prompt": "x"})
            assert (response.status_code, error_of(response)["code"]) == (503, "store_away")
            assert int(response.headers["retry-after"]) > 0
        assert door.http.get("/healthz").status_code == 200
        assert door.http.get("/metrics").status_code == 200


def test_a_full_store_answers_503_and_the_door_takes_requests_again(door, capfd):
    redis = door.desk.store.redis
    redis.config_set("maxmemory", 1)
    try:
        for path in ("/v1/jobs", "/v1/completions"):
            response = door.http.post(path, json={"prompt": "x"})
            assert (response.status_code, error_of(response)["code"]) == (503, "store_full")
            assert int(response.headers["retry-after"]) > 0
    finally:
        redis.config_set("maxmemory", 0)
    assert "Traceback" not in capfd.readouterr().err
    assert door.http.post("/v1/jobs", json={"prompt": "x"}).status_code == 202


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENOMEM])
def test_a_shortage_that_passes_is_told_as_one(door, monkeypatch, capfd, number):
    def short(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(door.desk.store, "job", short)
    response = door.http.get("/v1/jobs/x")
    assert (response.status_code, error_of(response)["code"]) == (503, "short")
    assert int(response.headers["retry-after"]) > 0
    assert "Traceback" not in capfd.readouterr().err


def test_a_store_that_runs_somebodys_endless_script_is_away(door, capfd):
    """Found by tests/chaos: its BUSY was told as an internal error."""
    redis = door.desk.store.redis
    other = Redis.from_url(door.desk.store.url)
    redis.config_set("busy-reply-threshold", 10)
    thread = threading.Thread(target=run_for_ever, args=(other,))
    thread.start()
    try:
        wait_until_busy(redis)
        time.sleep(1.1)  # what the door has read of the store a second ago it does not ask again
        for method, path in [("POST", "/v1/jobs"), ("GET", "/v1/jobs/x"), ("DELETE", "/v1/jobs/x")]:
            response = door.http.request(method, path, json={"prompt": "x"})
            assert (response.status_code, error_of(response)["code"]) == (503, "store_away")
            assert int(response.headers["retry-after"]) > 0
    finally:
        redis.script_kill()
        thread.join()
        redis.config_set("busy-reply-threshold", 5000)
    assert "Traceback" not in capfd.readouterr().err


def run_for_ever(redis):
    with contextlib.suppress(RedisError):  # killed
        redis.eval("while true do end", 0)


def wait_until_busy(redis):
    while True:
        try:
            redis.ping()
        except RedisError:
            return
        time.sleep(0.01)


def test_without_the_model_requests_get_503(settings, tmp_path):
    from tests.ingest.conftest import Door

    door = Door(settings.model_copy(update={"home": tmp_path}))
    try:
        door.thread.start()
        for _ in range(200):
            with contextlib.suppress(httpx.ConnectError):
                response = door.http.post("/v1/jobs", json={"prompt": "x"})
                break
        assert (response.status_code, error_of(response)["code"]) == (503, "model_loading")
    finally:
        door.stop()
