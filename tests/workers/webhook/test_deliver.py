"""One attempt ends in time, whatever the receiver does, and goes only where it was judged to go."""

import itertools
import socket
import ssl
import threading
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from workers.address import parse_networks
from workers.webhook.deliver import (
    ANSWER_BYTES_MAX,
    Outcome,
    Way,
    attempt,
    judge_status,
    parse_retry_after,
)

LOOPBACK = parse_networks("127.0.0.0/8")
WAY = Way(allow=LOOPBACK, deadline_s=20)
SHORT = Way(allow=LOOPBACK, deadline_s=0.5)
NOT_PUBLIC = "the address 127.0.0.1 is not public and not in LOCKSTEP_WEBHOOK_ALLOW"
CERTIFICATE = Path(__file__).parent / "hook_example.pem"


def names(*answers):
    """A resolver that gives a new address at every look-up."""
    turn = itertools.cycle(answers)

    def lookup(host, port, **_):
        lookup.count += 1
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (next(turn), port))]

    lookup.count = 0
    return lookup


def test_a_post_arrives_with_its_headers_and_body(receive):
    receiver = receive(204)
    outcome = attempt(receiver.url, b'{"a":1}', {"webhook-id": "msg_1"}, WAY)
    assert outcome == Outcome("delivered", 204)
    headers, body = receiver.got[0]
    assert body == b'{"a":1}'
    assert headers["content-type"] == "application/json"
    assert headers["webhook-id"] == "msg_1"
    assert headers["host"] == f"127.0.0.1:{receiver.port}"


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_not_followed_and_is_final(receive, status):
    elsewhere, receiver = receive(200), receive(status)
    receiver.headers["location"] = elsewhere.url
    outcome = attempt(receiver.url, b"{}", {}, WAY)
    assert (outcome.kind, outcome.status) == ("dead", status)
    assert not elsewhere.got


@pytest.mark.parametrize(
    ("status", "kind"),
    [(200, "delivered"), (201, "delivered"), (299, "delivered"), (300, "dead"), (304, "dead")]
    + [(status, "dead") for status in (400, 401, 403, 404, 410, 413, 422, 499)]
    + [(status, "retry") for status in (408, 425, 429, 500, 502, 503, 504, 599, 600, 999)],
)
def test_what_a_status_means(status, kind):
    assert judge_status(status).kind == kind


@pytest.mark.parametrize(("status", "expected"), [(429, 120.0), (503, 120.0), (500, None)])
def test_a_receiver_may_ask_for_patience(receive, status, expected):
    receiver = receive(status)
    receiver.headers["retry-after"] = "120"
    outcome = attempt(receiver.url, b"{}", {}, WAY)
    assert (outcome.kind, outcome.retry_after_s) == ("retry", expected)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("0", 0.0),
        (" 17 ", 17.0),
        ("9" * 400, 999_999_999.0),
        ("Mon, 30 Nov 2026 00:01:00 GMT", 60.0),
        ("Sun, 29 Nov 2026 00:00:00 GMT", 0.0),
        ("-5", None),
        ("soon", None),
        ("", None),
    ],
)
def test_retry_after_is_seconds_or_a_date(value, seconds):
    assert parse_retry_after(value, datetime(2026, 11, 30, tzinfo=UTC)) == seconds


def test_nobody_listening_is_tried_again(free_port):
    outcome = attempt(f"http://127.0.0.1:{free_port()}/", b"{}", {}, WAY)
    assert outcome.kind == "retry"
    assert "refused" in outcome.error


@pytest.mark.parametrize(
    "answer", [b"", b"HTTP/1.1 200", b"hello\r\n\r\n", b"HTTP/1.1 200 OK\r\nX: " + b"a" * 200_000]
)
def test_what_is_no_http_is_tried_again(answer_raw, answer):
    url = answer_raw(lambda connection: connection.sendall(answer))
    outcome = attempt(url, b"{}", {}, WAY)
    assert (outcome.kind, outcome.status) == ("retry", None)


def drip(beginning):
    def answer(connection):
        connection.sendall(beginning)
        while True:
            connection.sendall(b"a")
            time.sleep(0.02)

    return answer


@pytest.mark.parametrize(
    "beginning", [b"", b"H", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\nX: "]
)
def test_dripping_headers_do_not_hold_us(answer_raw, beginning):
    """Each byte comes well within a read timeout; only a deadline over all of them ends this."""
    outcome = attempt(answer_raw(drip(beginning)), b"{}", {}, SHORT)
    assert outcome.kind == "retry"


def test_a_dripping_tls_handshake_does_not_hold_us(answer_raw):
    """The beginning of a long TLS record, then a byte now and then."""
    url = answer_raw(drip(b"\x16\x03\x03\x40\x00\x02")).replace("http:", "https:")
    assert attempt(url, b"{}", {}, SHORT).kind == "retry"


def test_endless_interim_answers_do_not_hold_us(answer_raw):
    def answer(connection):
        while True:
            connection.sendall(b"HTTP/1.1 103 Early Hints\r\n\r\n")
            time.sleep(0.02)

    assert attempt(answer_raw(answer), b"{}", {}, SHORT).kind == "retry"


def test_silence_ends_at_the_deadline(receive):
    receiver = receive(200)
    receiver.open.clear()
    outcome = attempt(receiver.url, b"{}", {}, SHORT)
    assert outcome == Outcome("retry", error="no answer within 0.5 s")


def test_a_receiver_that_does_not_read_ends_at_the_deadline(free_port):
    with socket.create_server(("127.0.0.1", 0)) as listener:  # accepts by the kernel, never reads
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
        assert attempt(url, b"x" * (32 << 20), {}, SHORT).kind == "retry"


def test_a_dripping_body_does_not_take_back_its_status(answer_raw):
    url = answer_raw(drip(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n"))
    assert attempt(url, b"{}", {}, SHORT) == Outcome("delivered", 200)


def test_of_a_huge_body_only_the_beginning_is_read(answer_raw):
    sent = []

    def answer(connection):
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        try:
            while len(sent) < 10_000:
                connection.sendall(b"y" * ANSWER_BYTES_MAX)
                sent.append(ANSWER_BYTES_MAX)
        finally:
            ended.set()

    ended = threading.Event()
    assert attempt(answer_raw(answer), b"{}", {}, WAY) == Outcome("delivered", 200)
    assert ended.wait(30)
    assert len(sent) < 1000  # what the sockets' buffers hold, not 625 MB


def test_a_refused_target_is_final_and_nothing_is_sent(receive):
    receiver = receive(200)
    outcome = attempt(receiver.url, b"{}", {}, Way())
    assert outcome == Outcome("dead", error=NOT_PUBLIC)
    assert not receiver.got


def test_rebinding_gains_nothing(receive):
    """Judged is what is connected to: the second answer of the name is never asked for."""
    receiver = receive(200)
    lookup = names("127.0.0.1", "93.184.216.34")
    way = Way(allow=(), lookup=lookup, deadline_s=5)
    outcome = attempt("https://evil.example/", b"{}", {}, way)
    assert outcome == Outcome("dead", error=NOT_PUBLIC)
    assert lookup.count == 1
    assert not receiver.got


def test_the_judged_address_is_connected_to_with_the_name_in_sni_and_host(receive):
    receiver = receive(200, tls=True)
    lookup = names("127.0.0.1", "10.0.0.1")
    trust = ssl.create_default_context(cafile=str(CERTIFICATE))
    way = Way(allow=LOOPBACK, lookup=lookup, tls=trust, deadline_s=20)
    url = f"https://hook.example:{receiver.port}/hook?a=1"
    assert attempt(url, b"{}", {}, way) == Outcome("delivered", 200)
    assert lookup.count == 1
    assert receiver.headers["sni"] == "hook.example"
    assert receiver.got[0][0]["host"] == f"hook.example:{receiver.port}"


def test_a_certificate_for_another_name_is_not_accepted(receive):
    receiver = receive(200, tls=True)
    trust = ssl.create_default_context(cafile=str(CERTIFICATE))
    way = Way(allow=LOOPBACK, lookup=names("127.0.0.1"), tls=trust, deadline_s=20)
    outcome = attempt(f"https://other.example:{receiver.port}/", b"{}", {}, way)
    assert outcome.kind == "retry"
    assert "certificate" in outcome.error.lower()
    assert not receiver.got


def test_an_untrusted_certificate_is_not_accepted(receive):
    receiver = receive(200, tls=True)
    outcome = attempt(receiver.url, b"{}", {}, WAY)
    assert outcome.kind == "retry"
    assert not receiver.got


def test_the_next_address_gets_its_chance(receive):
    receiver = receive(200, tls=True)

    def lookup(host, port, **_):
        return [(2, 1, 6, "", (a, port)) for a in ("127.0.0.9", "127.0.0.1")]

    trust = ssl.create_default_context(cafile=str(CERTIFICATE))
    way = Way(allow=LOOPBACK, lookup=lookup, tls=trust, deadline_s=20)
    assert attempt(f"https://hook.example:{receiver.port}/", b"{}", {}, way).kind == "delivered"


def test_a_dead_name_server_does_not_hold_us():
    held = threading.Event()
    way = Way(lookup=lambda *_, **__: held.wait(60) and [], deadline_s=0.3)
    assert attempt("https://example.com/", b"{}", {}, way).kind == "retry"
    held.set()


@pytest.mark.parametrize("error", [socket.gaierror(-2, "Name or service not known"), OSError("x")])
def test_a_name_that_is_unknown_now_is_tried_again(error):
    def lookup(*_, **__):
        raise error

    assert attempt("https://example.com/", b"{}", {}, Way(lookup=lookup)).kind == "retry"


def test_proxies_of_the_environment_are_not_used(receive, monkeypatch):
    receiver, proxy = receive(200), receive(500)
    monkeypatch.setenv("http_proxy", proxy.url)
    monkeypatch.setenv("ALL_PROXY", proxy.url)
    assert attempt(receiver.url, b"{}", {}, WAY).kind == "delivered"
    assert not proxy.got
