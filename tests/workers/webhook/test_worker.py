"""Attempts side by side in one worker, driven by hand: no process, no signals, no clock."""

import threading
from datetime import UTC, datetime

import pytest

from tests.workers.webhook.ended import end_a_request
from workers.address import parse_networks
from workers.webhook.deliver import Way
from workers.webhook.endpoints import PER_ENDPOINT
from workers.webhook.sender import Sender
from workers.webhook.sign import make_secret
from workers.webhook.worker import WebhookWorker, endpoint_of
from workers.wire import Keys
from workers.worker_store import WorkerStore


@pytest.fixture
def store(redis_url):
    return WorkerStore(redis_url, Keys("lockstep"))


@pytest.fixture
def worker(store, tmp_path):
    make_secret(tmp_path)
    way = Way(allow=parse_networks("127.0.0.0/8"), deadline_s=60)
    sender = Sender(store, tmp_path, None, way, lambda: datetime.now(UTC))
    return WebhookWorker(store, sender, (100.0, 200.0), name="w1", draw=lambda: 0.5)


def take(worker):
    """Claim what waits and start it."""
    worker.claim()
    while message := worker.next_message(0.0):
        worker.handle(message)


def drive(worker):
    """Until nothing is under way."""
    take(worker)
    while worker.has_work():
        worker.advance()


def test_a_delivered_webhook_leaves_nothing_behind(store, worker, receive):
    receiver = receive(200)
    end_a_request(store, receiver.url)
    drive(worker)
    assert store.webhook("r-1")["state"] == "delivered"
    assert (worker.held, worker.in_flight) == ({}, {})
    assert worker.outbox.queue_due() is None


def test_the_next_attempt_is_due_when_the_schedule_says(store, worker, receive):
    end_a_request(store, receive(500).url)
    drive(worker)
    assert 50 < worker.outbox.queue_due() <= 100
    store.redis.zadd(store.keys.webhooks_due, {"r-1": 1})
    worker.outbox.queue_due()
    drive(worker)
    assert 150 < worker.outbox.queue_due() <= 200
    store.redis.zadd(store.keys.webhooks_due, {"r-1": 1})
    worker.outbox.queue_due()
    drive(worker)
    assert store.webhook("r-1")["state"] == "dead"


def test_a_receiver_that_asks_for_patience_gets_it(store, worker, receive):
    receiver = receive(429)
    receiver.headers["retry-after"] = "5000"
    end_a_request(store, receiver.url)
    drive(worker)
    assert 4900 < worker.outbox.queue_due() <= 5000


def test_a_full_endpoint_gets_no_more_and_another_one_does(store, worker, receive):
    busy, other = receive(200), receive(200)
    busy.open.clear()
    for n in range(PER_ENDPOINT + 3):
        end_a_request(store, busy.url, f"busy-{n}")
    end_a_request(store, other.url, "other")
    take(worker)
    other.wait(1)
    busy.wait(PER_ENDPOINT)
    waiting = [store.webhook(f"busy-{n}") for n in range(PER_ENDPOINT, PER_ENDPOINT + 3)]
    assert [webhook["attempts"] for webhook in waiting] == [0, 0, 0]
    assert all(webhook["next_at"] > 0 for webhook in waiting)
    assert len(busy.got) == PER_ENDPOINT
    busy.open.set()
    drive(worker)
    assert worker.held == {}


@pytest.mark.parametrize("error", [ValueError("odd"), KeyError("status"), MemoryError()])
def test_what_nobody_foresaw_is_tried_again_and_told(store, worker, receive, error):
    def send(request_id, webhook):
        raise error

    worker.sender.send = send
    end_a_request(store, receive(200).url)
    drive(worker)
    webhook = store.webhook("r-1")
    assert (webhook["state"], webhook["attempts"]) == ("pending", 1)
    assert type(error).__name__ in webhook["last_error"]
    assert worker.held == {}


def test_an_attempt_whose_lease_was_lost_changes_nothing(store, worker, receive):
    receiver = receive(200)
    receiver.open.clear()
    end_a_request(store, receiver.url)
    take(worker)
    receiver.wait(1)
    store.redis.delete(store.keys.wip("webhooks"))
    receiver.open.set()
    drive(worker)
    assert store.webhook("r-1")["attempts"] == 0
    assert (worker.held, worker.in_flight) == ({}, {})


def test_a_stopping_worker_lets_an_attempt_end_that_is_nearly_done(store, worker, receive):
    receiver = receive(200)
    receiver.open.clear()
    end_a_request(store, receiver.url)
    take(worker)
    receiver.wait(1)
    threading.Timer(0.1, receiver.open.set).start()
    worker.flush(60)
    assert store.webhook("r-1")["state"] == "delivered"
    assert worker.held == {}


def test_a_stopping_worker_does_not_wait_for_one_that_is_not(store, worker, receive):
    receiver = receive(200)
    receiver.open.clear()
    end_a_request(store, receiver.url)
    take(worker)
    worker.flush(0.05)
    assert list(worker.held) == ["wh-r-1-1"]  # what teardown hands back


@pytest.mark.parametrize(
    ("url", "endpoint"), [("https://A.example/x", "a.example:443"), ("", "?"), ("ftp://x", "?")]
)
def test_an_endpoint_is_host_and_port(url, endpoint):
    assert endpoint_of(url) == endpoint
