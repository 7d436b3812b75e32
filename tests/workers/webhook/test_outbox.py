"""An attempt ends once, in one step, and what is due comes back as an RQ job of its own."""

import pytest

from tests.workers.webhook.ended import end_a_request
from workers.webhook.deliver import Outcome
from workers.webhook.outbox import Outbox, request_id_of
from workers.wire import Keys
from workers.worker_store import WorkerStore

URL = "http://127.0.0.1:9/hook"
DELIVERED, FAILED, REFUSED = (
    Outcome("delivered", 204),
    Outcome("retry", 500, "HTTP 500"),
    Outcome("dead", 410, "HTTP 410"),
)


@pytest.fixture
def store(redis_url):
    return WorkerStore(redis_url, Keys("lockstep"), max_attempts=2)


@pytest.fixture
def outbox(store):
    return Outbox(store)


def claim(store, worker="w1"):
    (item,) = store.claim("webhooks", worker, 1)
    return item


def waiting(store):
    return [job_id.decode() for job_id in store.redis.lrange(store.keys.webhook_queue, 0, -1)]


def rq_status(store, job_id):
    return store.redis.hget(store.keys.rq_job(job_id), "status")


def test_an_ended_request_has_one_pending_webhook(store, outbox):
    end_a_request(store, URL, secret_id="shop")
    assert waiting(store) == ["wh-r-1-1"]
    webhook = store.webhook("r-1")
    assert (webhook["state"], webhook["status"], webhook["attempts"]) == ("pending", "failed", 0)
    assert (webhook["url"], webhook["secret_id"]) == (URL, "shop")


@pytest.mark.parametrize(
    ("job_id", "request_id"),
    [("wh-r-1", "r"), ("wh-batch-17-0-12", "batch-17-0"), ("wh-acme--x-y-2", "acme--x-y")],
)
def test_the_attempt_names_its_request(job_id, request_id):
    assert request_id_of(job_id) == request_id


def test_a_delivered_webhook_is_done(store, outbox):
    end_a_request(store, URL)
    item = claim(store)
    assert outbox.end(item, DELIVERED) == "delivered"
    webhook = store.webhook("r-1")
    assert (webhook["attempts"], webhook["last_status"], webhook["last_error"]) == (1, 204, "")
    assert rq_status(store, "wh-r-1-1") == b"finished"
    assert outbox.queue_due() is None
    assert waiting(store) == []
    assert 0 < store.redis.ttl(store.keys.webhook("r-1")) <= store.result_ttl_s
    assert 0 < store.redis.ttl(store.keys.job("r-1")) <= store.result_ttl_s


def test_a_failed_attempt_waits_for_its_time(store, outbox):
    end_a_request(store, URL)
    assert outbox.end(claim(store), FAILED, delay_s=3600) == "pending"
    assert 3500 < outbox.queue_due() <= 3600
    assert waiting(store) == []
    webhook = store.webhook("r-1")
    assert (webhook["last_status"], webhook["last_error"]) == (500, "HTTP 500")
    assert webhook["next_at"] > 0
    assert rq_status(store, "wh-r-1-1") == b"failed"


def test_when_it_is_due_the_next_attempt_is_an_rq_job_of_its_own(store, outbox):
    end_a_request(store, URL)
    outbox.end(claim(store), FAILED, delay_s=0)
    store.redis.delete(store.keys.bell("webhooks"))
    outbox.queue_due()
    assert waiting(store) == ["wh-r-1-2"]
    assert "next_at" not in store.webhook("r-1")
    assert store.redis.llen(store.keys.bell("webhooks")) == 1
    outbox.end(claim(store), DELIVERED)
    assert store.webhook("r-1")["attempts"] == 2


def test_results_stay_while_their_webhook_waits(store, outbox):
    """A retention shorter than the schedule must not take the body from the last attempt."""
    store.result_ttl_s = 60
    end_a_request(store, URL)
    for key in (store.keys.webhook("r-1"), store.keys.job("r-1")):
        assert store.redis.ttl(key) > 8 * 86400
    outbox.end(claim(store), FAILED, delay_s=3600)
    for key in (store.keys.webhook("r-1"), store.keys.job("r-1"), store.keys.webhooks_due):
        assert store.redis.ttl(key) > 8 * 86400


LOST = {
    "emptied": lambda redis, keys: redis.delete(keys.webhook_queue),
    "removed": lambda redis, keys: redis.lrem(keys.webhook_queue, 0, "wh-r-1-1"),
    "deleted": lambda redis, keys: redis.delete(keys.webhook_queue, keys.rq_job("wh-r-1-1")),
    "marked": lambda redis, keys: redis.hset(keys.rq_job("wh-r-1-1"), "status", "canceled"),
}


@pytest.mark.parametrize("fault", LOST.values(), ids=LOST)
def test_a_webhook_whose_rq_job_was_lost_is_found_again(store, outbox, fault):
    """As `rq empty`, Job.cancel or Job.delete leave it; looked at an hour later."""
    end_a_request(store, URL)
    fault(store.redis, store.keys)
    assert 3500 < outbox.queue_due() <= 3600
    store.redis.zadd(store.keys.webhooks_due, {"r-1": 1})
    outbox.queue_due()
    assert set(waiting(store)) == {"wh-r-1-1"}
    assert claim(store).job_id == "wh-r-1-1"


def test_an_attempt_that_waits_or_runs_is_not_doubled(store, outbox):
    end_a_request(store, URL)
    for _ in range(2):
        store.redis.zadd(store.keys.webhooks_due, {"r-1": 1})
        assert 3500 < outbox.queue_due() <= 3600
        assert waiting(store) == ["wh-r-1-1"]
    item = claim(store)
    store.redis.zadd(store.keys.webhooks_due, {"r-1": 1})
    assert 3500 < outbox.queue_due() <= 3600
    assert waiting(store) == []
    assert outbox.end(item, DELIVERED) == "delivered"
    assert outbox.queue_due() is None


def test_many_due_webhooks_all_go(store, outbox):
    for n in range(250):
        store.redis.hset(store.keys.webhook(f"r-{n}"), mapping={"state": "pending", "attempts": 4})
        store.redis.zadd(store.keys.webhooks_due, {f"r-{n}": 1})
    outbox.queue_due()
    assert sorted(waiting(store)) == sorted(f"wh-r-{n}-5" for n in range(250))


def test_what_is_no_longer_pending_is_not_queued(store, outbox):
    store.redis.hset(store.keys.webhook("r-1"), mapping={"state": "delivered", "attempts": 1})
    store.redis.zadd(store.keys.webhooks_due, {"r-1": 1, "never-heard-of": 1})
    assert outbox.queue_due() is None
    assert waiting(store) == []


@pytest.mark.parametrize("outcome", [REFUSED, FAILED])
def test_a_dead_webhook_leaves_a_letter_with_all_that_a_replay_needs(store, outbox, outcome):
    """REFUSED is final by itself, FAILED because there is no next attempt."""
    end_a_request(store, URL, secret_id="shop")
    assert outbox.end(claim(store), outcome, b'{"a":1}') == "dead"
    letter = store.redis.xrevrange(store.keys.dead, count=1)[0][1]
    assert letter | {b"at_ms": b""} == {
        b"at_ms": b"",
        b"kind": b"webhook",
        b"id": b"r-1",
        b"tenant": b"default",
        b"url": URL.encode(),
        b"secret_id": b"shop",
        b"status": b"failed",
        b"attempts": b"1",
        b"reason": outcome.error.encode(),
        b"code": b"webhook",
        b"body": b'{"a":1}',
    }
    assert store.webhook("r-1")["state"] == "dead"
    assert rq_status(store, "wh-r-1-1") == b"failed"
    assert outbox.queue_due() is None


def test_an_attempt_that_was_put_off_does_not_count(store, outbox):
    end_a_request(store, URL)
    assert outbox.put_off(claim(store), 0) == "pending"
    assert store.webhook("r-1")["attempts"] == 0
    outbox.queue_due()
    assert waiting(store) == ["wh-r-1-1"]
    assert claim(store).job_id == "wh-r-1-1"


@pytest.mark.parametrize("outcome", [DELIVERED, FAILED, REFUSED])
def test_a_sender_that_lost_its_lease_changes_nothing(store, outbox, outcome):
    end_a_request(store, URL)
    slow = claim(store)
    store.redis.zadd(store.keys.wip("webhooks"), {f"{slow.job_id}:{slow.execution_id}": 0})
    assert store.reap("webhooks") == ["wh-r-1-1"]
    quick = claim(store, "w2")
    before = store.webhook("r-1")
    assert outbox.end(slow, outcome, delay_s=1) == "lost"
    assert store.webhook("r-1") == before
    assert outbox.end(quick, DELIVERED) == "delivered"
    assert outbox.end(quick, FAILED, delay_s=1) == "lost"
    assert store.webhook("r-1")["state"] == "delivered"


def test_what_kills_its_senders_is_dead_and_says_so(store, outbox):
    end_a_request(store, URL)
    for _ in range(store.max_attempts):
        item = claim(store)
        store.redis.zadd(store.keys.wip("webhooks"), {f"{item.job_id}:{item.execution_id}": 0})
        store.reap("webhooks")
    assert store.claim("webhooks", "w1", 1) == []
    letter = store.redis.xrevrange(store.keys.dead, count=1)[0][1]
    assert (letter[b"kind"], letter[b"id"], letter[b"code"]) == (b"webhook", b"r-1", b"poison")
    assert store.webhook("r-1")["state"] == "dead"
