"""An attempt made from what the store holds: the same message each time, at its own time."""

from datetime import UTC, datetime, timedelta

import pytest

from tests.workers.webhook.ended import end_a_request
from workers.address import parse_networks
from workers.store import Store
from workers.webhook.deliver import Outcome, Way
from workers.webhook.sender import GONE, Sender
from workers.webhook.sign import default_file, make_secret
from workers.wire import Keys

WAY = Way(allow=parse_networks("127.0.0.0/8"), deadline_s=20)


@pytest.fixture
def store(redis_url):
    return Store(redis_url, Keys("lockstep"))


def make_sender(store, home, now=lambda: datetime.now(UTC), configured=None):
    make_secret(home)
    return Sender(store, home, configured, WAY, now)


def test_two_attempts_are_one_message_at_two_times(store, tmp_path, receive):
    """The id is what a receiver drops repeats by; the time is what it refuses old messages by."""
    receiver = receive(500, 200)
    end_a_request(store, receiver.url)
    times = [datetime.now(UTC), datetime.now(UTC) + timedelta(seconds=100)]
    clock = iter(times)
    sender = make_sender(store, tmp_path, lambda: next(clock))
    webhook = store.webhook("r-1")
    kinds = [sender.send("r-1", webhook).outcome.kind for _ in times]
    assert kinds == ["retry", "delivered"]
    (first, body), (second, same_body) = receiver.got
    assert first["webhook-id"] == second["webhook-id"] == "msg_r-1_failed"
    assert body == same_body
    assert [int(h["webhook-timestamp"]) for h in (first, second)] == [
        int(t.timestamp()) for t in times
    ]
    assert first["webhook-signature"] != second["webhook-signature"]
    secret = default_file(tmp_path).read_text().strip()
    assert len(receiver.verified(secret)) == 2


def test_the_secret_is_read_when_an_attempt_is_made(store, tmp_path, receive):
    receiver = receive(200)
    end_a_request(store, receiver.url)
    sender = make_sender(store, tmp_path)
    new = "whsec_" + "bmV3bmV3bmV3bmV3bmV3bmV3bmV3bmV3"
    default_file(tmp_path).write_text(new)
    sender.send("r-1", store.webhook("r-1"))
    assert receiver.verified(new)


def test_a_result_that_is_gone_cannot_be_posted(store, tmp_path, receive):
    receiver = receive(200)
    end_a_request(store, receiver.url)
    store.redis.delete(store.keys.job("r-1"))
    sent = make_sender(store, tmp_path).send("r-1", store.webhook("r-1"))
    assert sent.outcome == Outcome("dead", error=GONE)
    assert not receiver.got


def test_a_replay_brings_its_body_along(store, tmp_path, receive):
    receiver = receive(200)
    end_a_request(store, receiver.url)
    store.redis.delete(store.keys.job("r-1"))
    webhook = store.webhook("r-1") | {"body": '{"type":"job.failed"}'}
    sent = make_sender(store, tmp_path).send("r-1", webhook)
    assert sent.outcome.kind == "delivered"
    assert receiver.got[0][1] == b'{"type":"job.failed"}'


def test_a_webhook_that_is_gone_is_dead(store, tmp_path):
    """Its state expired while its RQ job waited: there is no address any more."""
    end_a_request(store, "http://127.0.0.1:9/hook")
    assert make_sender(store, tmp_path).send("r-1", {}).outcome.kind == "dead"


def test_a_missing_secret_is_a_reason_to_try_again(store, tmp_path, receive):
    receiver = receive(200)
    end_a_request(store, receiver.url, secret_id="shop")
    outcome = make_sender(store, tmp_path).send("r-1", store.webhook("r-1")).outcome
    assert outcome.kind == "retry"
    assert "shop" in outcome.error
    assert not receiver.got
