"""A job says what became of its webhook."""

import json

from tests.ingest.stub_node import Play
from tests.workers.webhook.ended import end_a_request
from workers.webhook.deliver import Outcome
from workers.webhook.event import compose_start
from workers.webhook.outbox import Outbox
from workers.worker_store import WorkerStore

URL = "http://127.0.0.1:9/hook"


def test_a_job_tells_how_its_webhook_fares(door):
    store = WorkerStore.of(door.desk.settings)
    end_a_request(store, URL, "r-1")
    webhook = door.http.get("/v1/jobs/r-1").json()["webhook"]
    assert webhook == {"url": URL, "state": "pending", "attempts": 0}
    (item,) = store.claim("webhooks", "w1", 1)
    Outbox(store).end(item, Outcome("retry", 500, "HTTP 500"), delay_s=60)
    webhook = door.http.get("/v1/jobs/r-1").json()["webhook"]
    assert webhook.pop("next_at") > 0
    assert webhook == {
        "url": URL,
        "state": "pending",
        "attempts": 1,
        "last_status": 500,
        "last_error": "HTTP 500",
    }


def test_a_job_without_a_webhook_does_not_speak_of_one(door):
    door.http.post("/v1/jobs", json={"prompt": "hi", "id": "r-1"})
    assert "webhook" not in door.http.get("/v1/jobs/r-1").json()


def test_a_webhook_that_wants_the_start_is_told_of_it_once(door, node, wait_until):
    """And of the end by a message of its own; without a choice only the end is told."""
    node.play = Play(pause_after=1)
    hook = {"url": "https://example.com/hook", "events": ["started", "finished"]}
    door.http.post("/v1/jobs", json={"prompt": "hi", "id": "r-1", "webhook": hook})
    store = WorkerStore.of(door.desk.settings)
    wait_until(lambda: store.redis.llen(store.keys.webhook_queue) == 1)
    (start,) = store.claim("webhooks", "w1", 1)
    assert start.job_id == "wh-r-1.started-1"
    body = json.loads(compose_start("r-1", store.job("r-1")))
    assert (body["type"], body["data"]["status"]) == ("job.started", "running")
    node.go.set()
    wait_until(lambda: store.redis.llen(store.keys.webhook_queue) == 1)
    assert Outbox(store).end(start, Outcome("delivered", 200)) == "delivered"
    (end,) = store.claim("webhooks", "w1", 1)
    assert end.job_id == "wh-r-1-1"
    assert store.webhook("r-1.started")["state"] == "delivered"
    assert store.webhook("r-1")["state"] == "pending"
    door.http.post("/v1/jobs", json={"prompt": "hi", "id": "r-2", "webhook": {"url": hook["url"]}})
    wait_until(lambda: store.redis.llen(store.keys.webhook_queue) == 1)
    assert [item.job_id for item in store.claim("webhooks", "w1", 9)] == ["wh-r-2-1"]
