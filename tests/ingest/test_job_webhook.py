"""A job says what became of its webhook."""

from tests.workers.webhook.ended import end_a_request
from workers.webhook.deliver import Outcome
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
