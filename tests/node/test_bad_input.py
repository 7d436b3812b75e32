"""Bad input by either door: one sentence that names the field, and nothing else notices."""

import httpx
import msgpack
import pytest

from tests.node.running_node import wait_for

PROMPT = {"prompt": "Hello"}
BAD = [  # fields, the field that is named
    ({"prompt": "Hello", "model": "gpt-4"}, "model"),
    ({"prompt": ["a", 5]}, "prompt"),
    ({"prompt": ""}, "prompt"),
    ({}, "prompt"),
    ({"prompt": "x " * 9000}, "prompt"),
    ({"prompt": "x" * 3_000_000}, "prompt"),
    ({**PROMPT, "max_tokens": -5}, "max_tokens"),
    ({**PROMPT, "max_tokens": 10**9}, "max_tokens"),
    ({**PROMPT, "max_tokens": "many"}, "max_tokens"),
    ({**PROMPT, "temperature": "warm"}, "temperature"),
    ({**PROMPT, "stop": [""]}, "stop[0]"),
    ({**PROMPT, "sla": "urgent"}, "sla"),
    ({**PROMPT, "id": "a--b"}, "id"),
    ({**PROMPT, "webhook": {"url": "https://169.254.169.254/latest"}}, "webhook.url"),
    ({**PROMPT, "session_id": "../s"}, "session_id"),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
        "messages[0].content[0]",
    ),
]
IDS = [f"{n}-{field}" for n, (_, field) in enumerate(BAD)]


@pytest.mark.parametrize(("fields", "field"), BAD, ids=IDS)
def test_over_http_it_is_an_openai_error(node, fields, field):
    answer = httpx.post(f"{node.url}/v1/jobs", json=fields, timeout=60)
    error = answer.json()["error"]
    assert answer.status_code == (404 if field == "model" else 400)
    assert (error["param"], error["type"]) == (field, "invalid_request_error")
    assert error["message"].startswith(f"{field}: ")


@pytest.mark.parametrize(("fields", "field"), BAD, ids=IDS)
def test_over_redis_it_is_a_failed_status(node, fields, field):
    stream = node.store.keys.requests("standard")
    entry_id = node.store.redis.xadd(stream, {"m": msgpack.packb(fields)}).decode()
    job = node.end(f"standard-{entry_id}")
    assert job["status"] == "failed"
    assert job["error"].startswith(f"{field}: ")


@pytest.mark.parametrize(
    "entry",
    [
        {"m": b"\xc1"},
        {"m": b"\x81\xa6prompt\xa1\xff"},
        {"prompt": b"\xff\xfe"},
        {"m": b"x" * 5_000_000},
    ],
    ids=["msgpack", "utf8-in-map", "utf8-plain", "5 MB"],
)
def test_bytes_that_say_nothing_are_a_failed_status(node, entry):
    entry_id = node.store.redis.xadd(node.store.keys.requests("batch"), entry).decode()
    assert node.end(f"batch-{entry_id}")["status"] == "failed"


@pytest.mark.parametrize(
    ("body", "status"),
    [(b"{", 400), (b"\xff\xfe", 400), (b"[1]", 400), (b"[" * 100_000, 400)],
    ids=["cut", "utf8", "list", "deep"],
)
def test_a_body_that_is_no_json_object_is_refused(node, body, status):
    answer = httpx.post(f"{node.url}/v1/chat/completions", content=body)
    assert answer.status_code == status
    assert answer.json()["error"]["type"] == "invalid_request_error"


def test_a_body_of_100_mb_is_refused_before_it_is_read(node):
    def chunks():
        for _ in range(100):
            yield b" " * 2**20

    try:
        answer = httpx.post(f"{node.url}/v1/completions", content=chunks(), timeout=60)
        assert answer.status_code == 413
    except httpx.WriteError:
        pass  # refused and closed while we were still sending
    assert httpx.get(f"{node.url}/healthz").status_code == 200


def test_a_refusal_goes_to_the_webhook(node, receiver):
    request_id = node.add("prompt", "Hello", "max_tokens", "-5", "webhook_url", receiver.url)
    ((_, event),) = wait_for(lambda: receiver.of(request_id), "webhook")
    assert event["type"] == "job.failed"
    assert event["data"]["error"].startswith("max_tokens: ")
