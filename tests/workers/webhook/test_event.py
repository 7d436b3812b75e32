"""What a receiver reads: one shape for every end, the same bytes each time, never too long."""

import json

import pytest

from workers.webhook.event import (
    BODY_BYTES_MAX,
    compose,
    compose_start,
    message_id,
    split_name,
)
from workers.wire import TERMINAL

FINISHED = {
    "status": "finished",
    "ended_ms": 1795996800250,
    "text": "Grüße, “Welt”",
    "finish_reason": "stop",
    "prompt_tokens": 5,
    "output_tokens": 3,
    "cached_tokens": 2,
    "ttft_ms": 12.5,
    "tpot_ms": 4.25,
    "digest": "00ff00ff00ff00ff",
    "metadata": {"order": [1, 2]},
    "pool": "cpu",
    "reason": "cpu: ready",
}


def test_a_finished_request_says_everything():
    assert json.loads(compose("r-1", FINISHED)) == {
        "type": "job.finished",
        "timestamp": "2026-11-30T00:00:00.250Z",
        "data": {
            "id": "r-1",
            "tenant": "default",
            "status": "finished",
            "text": "Grüße, “Welt”",
            "finish_reason": "stop",
            "usage": {"prompt_tokens": 5, "output_tokens": 3, "cached_tokens": 2},
            "ttft_ms": 12.5,
            "tpot_ms": 4.25,
            "timings": {
                "queue_ms": None,
                "prompt_ms": None,
                "predicted_ms": 8.5,
                "prompt_n": 5,
                "predicted_n": 3,
                "cached_n": 2,
                "pool": "cpu",
                "reason": "cpu: ready",
            },
            "digest": "00ff00ff00ff00ff",
            "error": None,
            "code": None,
            "metadata": {"order": [1, 2]},
        },
    }


def test_a_sessions_request_names_it():
    data = json.loads(compose("r-1", FINISHED | {"session_id": "s", "forked_at": 7}))["data"]
    assert (data["session_id"], data["forked_at"]) == ("s", 7)


@pytest.mark.parametrize("status", TERMINAL)
def test_every_end_has_its_type_and_the_same_keys(status):
    event = json.loads(compose("r", {"status": status, "ended_ms": 0, "error": "why"}))
    assert event["type"] == f"job.{status}"
    assert event["data"]["error"] == "why"
    assert event["data"].keys() == json.loads(compose("r", FINISHED))["data"].keys()


def test_a_refused_request_has_little_to_say():
    """It was never routed: its hash holds a status and a reason, no counts."""
    job = {"status": "failed", "ended_ms": 0, "error": "no", "code": "bad_request"}
    data = json.loads(compose("r", job))["data"]
    assert (data["usage"], data["ttft_ms"], data["text"], data["metadata"]) == (None, None, "", {})
    assert (data["error"], data["code"]) == ("no", "bad_request")


@pytest.mark.parametrize("letter", ["a", "ü", "\x00", '"', "😀"])
def test_a_body_is_never_too_long(letter):
    """The limit is of bytes as sent: escapes and UTF-8 count."""
    for length in (0, 1000, 3000, 5000, 9000, 19_000, 100_000):
        body = compose("r", {**FINISHED, "text": letter * length})
        data = json.loads(body)["data"]
        assert len(body) < BODY_BYTES_MAX
        assert data.get("text_omitted") is True or data["text"] == letter * length
        assert ("text" in data) != ("text_omitted" in data)


def test_the_longest_text_that_fits_is_sent():
    rest = len(compose("r", {**FINISHED, "text": ""}))
    fits = {**FINISHED, "text": "a" * (BODY_BYTES_MAX - 1 - rest)}
    assert "text" in json.loads(compose("r", fits))["data"]
    fits["text"] += "a"
    assert "text" not in json.loads(compose("r", fits))["data"]


def test_huge_metadata_stays_out_too():
    body = compose("r", {**FINISHED, "metadata": {"a": "b" * 30_000}})
    data = json.loads(body)["data"]
    assert len(body) < BODY_BYTES_MAX
    assert (data["text_omitted"], data["metadata_omitted"]) == (True, True)


def test_the_id_is_that_of_the_request_and_its_end():
    assert message_id("batch-1-0", "failed") == "msg_batch-1-0_failed"


def test_a_tenant_reads_the_id_it_gave():
    data = json.loads(compose("acme--r-1", FINISHED))["data"]
    assert (data["id"], data["tenant"]) == ("r-1", "acme")


def test_a_start_says_what_will_not_change():
    job = {**FINISHED, "status": "running", "model": "m", "arrival_ms": 1, "started_ms": 250}
    event = json.loads(compose_start("acme--r", job))
    assert (event["type"], event["timestamp"]) == ("job.started", "1970-01-01T00:00:00.250Z")
    assert event["data"] == {
        "id": "r",
        "tenant": "acme",
        "status": "running",
        "model": "m",
        "arrival_ms": 1,
        "started_ms": 250,
        "metadata": {"order": [1, 2]},
    }


def test_the_start_has_a_name_of_its_own():
    assert split_name("r-1.started") == ("r-1", True)
    assert split_name("r-1") == ("r-1", False)
