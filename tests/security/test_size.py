"""Too large, too deep, too many, too slow: refused before it costs anything; nobody else waits."""

import contextlib
import json
import resource
import time

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingest.__main__ import config_of
from ingest.access import limits
from ingest.access.connection import Connection
from ingest.access.limits import CONTAINERS_MAX, DEPTH_MAX, VALUES_MAX, check_json
from ingest.anthropic.shape import input_of
from ingest.errors import ApiError
from tests.security.conftest import read_all

POST = b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\n"
JSON = st.recursive(
    st.none() | st.integers() | st.text(max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=40,
)


class Quick(Connection):
    """Its seconds are short."""

    seconds = 0.01


@pytest.fixture
def make_config(monkeypatch):
    """The door's connections have short seconds; how a test asks for them."""

    def quick(desk):
        config = config_of(desk)
        config.http = Quick
        return config

    monkeypatch.setattr("tests.ingest.conftest.config_of", quick)


def code_of(response):
    return response.status_code, response.json()["error"]["code"]


@pytest.mark.parametrize(
    "raw",
    [
        b'{"prompt": ' + b"[" * 1_000_000,
        b'{"prompt": ' + b"[" * (DEPTH_MAX + 1) + b"]" * (DEPTH_MAX + 1) + b"}",
        b'{"a": [' + b"[]," * CONTAINERS_MAX + b"0]}",
        b'{"a": [' + b"0," * VALUES_MAX + b"0]}",
        b'{"a": [' + b'"",' * VALUES_MAX + b"0]}",
        b'{"a": ' + b'{"":' * 500_000,
        b'["' + b'\\"' * 1_000_000 + b"[" * 100_000,
    ],
    ids=["open", "deep", "lists", "numbers", "strings", "objects", "unended"],
)
def test_json_that_would_be_large_in_memory_is_never_decoded(door, raw):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    response = door.http.post("/v1/jobs", content=raw)
    assert code_of(response) in ((400, "json_too_large"), (400, "invalid_json"))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 40_000  # KiB


@given(JSON, st.booleans())
def test_depth_is_that_of_the_decoded_value(value, is_ascii):
    def deep(one):
        inner = one.values() if isinstance(one, dict) else one if isinstance(one, list) else None
        return 0 if inner is None else 1 + max(map(deep, inner), default=0)

    raw = json.dumps(value, ensure_ascii=is_ascii).encode("utf-8", "surrogatepass")
    assert limits.depth(limits.STRING.sub(b"", raw)) == deep(value)


def test_brackets_in_strings_are_text():
    check_json(json.dumps({"prompt": "[{" * 200_000 + '\\"' * 9 + "[" * 99}).encode())


def test_exactly_what_is_allowed_is_allowed():
    check_json(b'{"a": ' + b"[" * (DEPTH_MAX - 1) + b"]" * (DEPTH_MAX - 1) + b"}")
    check_json(b"[" * DEPTH_MAX + b"]" * DEPTH_MAX + b"," * 5)
    with pytest.raises(ApiError, match="deeper"):
        check_json(b"[" * (DEPTH_MAX + 1) + b"]" * (DEPTH_MAX + 1))


def test_looking_at_a_body_takes_time_by_its_length_alone():
    """Quotes that never end, each of them escaped: a careless pattern needs hours."""
    for raw in (b'"' * 4_000_000, b'["' + b'\\"' * 2_000_000, b"[" * 4_000_000, b"\\" * 4_000_000):
        with contextlib.suppress(ApiError):
            check_json(b"[" * 99 + raw)


def test_a_models_own_json_may_be_as_deep_as_it_likes():
    """Arguments of a tool's call, which a prompt can make it write."""
    for written in ("[" * 50_000, "[" * 50_000 + "]" * 50_000):
        assert input_of(written) == {"arguments": written}


def test_a_url_is_not_endless(door):
    response = door.http.get("/v1/jobs/x", params={"after": "0" * 9000})
    assert code_of(response) == (414, "url_too_long")
    assert door.http.get("/v1/jobs/" + "x" * 9000).status_code == 414


def test_headers_are_not_endless(door, raw):
    many = {f"x-{n}": "1" for n in range(120)}
    assert code_of(door.http.get("/healthz", headers=many)) == (431, "head_too_large")
    assert code_of(door.http.get("/healthz", headers={"x": "a" * 33_000})) == (
        431,
        "head_too_large",
    )
    endless = raw(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: ")
    with contextlib.suppress(ConnectionError):
        for _ in range(64):
            endless.sendall(b"a" * 16_384)
    assert read_all(endless)[:12] in (b"HTTP/1.1 400", b"")  # a reset may take the answer along
    assert door.http.get("/healthz").status_code == 200


def test_lengths_that_contradict_each_other_are_refused(raw):
    """The beginning of request smuggling."""
    for head in (
        b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
        b"Content-Length: -1\r\n\r\n",
        b"Content-Length: 0x2\r\n\r\n{}",
        b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        b"Transfer-Encoding: chunked\r\n\r\nZZ\r\n{}\r\n0\r\n\r\n",
    ):
        assert read_all(raw(POST + b"Connection: close\r\n" + head)).startswith(b"HTTP/1.1 4"), head


def test_behind_a_body_of_two_lengths_there_is_no_second_request(raw):
    both = b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    told = read_all(raw(POST + both + b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"))
    assert told.startswith(b"HTTP/1.1 400") and told.count(b"HTTP/1.1") == 1


@pytest.mark.parametrize("sent", [b"", b"GET /heal", POST, POST + b"X: y\r\n"])
def test_a_head_that_does_not_come_is_not_waited_for(make_config, raw, sent):
    """Slowloris."""
    assert read_all(raw(sent)) == b""


def test_a_head_that_drips_is_cut_off(make_config, raw):
    client = raw(b"GET /healthz HTTP/1.1\r\n")
    with contextlib.suppress(ConnectionError):
        while True:
            client.sendall(b"X-A: b\r\n")
            time.sleep(0.02)


def test_a_second_head_on_the_same_connection_is_not_waited_for_either(make_config, raw):
    client = raw(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
    answer = b""
    while not answer.endswith(b"}"):
        answer += client.recv(1 << 16)
    client.sendall(b"GET /hea")
    assert read_all(client) == b""


@pytest.mark.parametrize("path", [b"/v1/jobs", b"/v1/chat/completions", b"/v1/tokenize"])
def test_a_body_that_drips_is_answered_with_408(make_config, raw, path):
    """Slow POST."""
    client = raw(b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n{" % path)
    with contextlib.suppress(ConnectionError):
        for _ in range(5):
            client.sendall(b" ")
            time.sleep(0.02)
    answer = read_all(client)
    assert answer.startswith(b"HTTP/1.1 408") and b'"body_too_slow"' in answer


def test_a_body_at_a_slow_but_honest_pace_is_read(door, raw):
    body = b'{"prompt": "%s"}' % (b"a" * 3000)
    client = raw(POST + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body))
    for begin in range(0, len(body), 100):
        client.sendall(body[begin : begin + 100])
        time.sleep(0.002)
    assert read_all(client).startswith(b"HTTP/1.1 202")


def test_a_reader_that_takes_nothing_is_let_go(make_config, door, raw, wait_until):
    """Asks again and again and never reads: its answers may not fill our memory."""
    client = raw()
    client.settimeout(5)
    with contextlib.suppress(OSError):
        for _ in range(200_000):
            client.sendall(b"GET /v1/schema HTTP/1.1\r\nHost: localhost\r\n\r\n" * 20)
    wait_until(lambda: len(door.server.server_state.connections) == 0)
    assert door.http.get("/healthz").status_code == 200


def test_too_many_connections_are_told_so(door, raw, monkeypatch):
    monkeypatch.setattr("ingest.access.connection.CONNECTIONS_MAX", 3)
    held = [raw() for _ in range(3)]
    answers = [read_all(raw()) for _ in range(3)]
    assert any(b"503" in answer[:12] and b"Retry-After: 5" in answer for answer in answers)
    for client in held:
        client.close()
    monkeypatch.undo()
    assert httpx.get(f"{door.base}/healthz").status_code == 200
