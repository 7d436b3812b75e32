"""A request that has ended and has a webhook, made the shortest way: it is refused at once."""

from contextlib import suppress

from redis.exceptions import ResponseError

from workers.wire import EndEvent, WebhookTarget
from workers.worker_store import WorkerStore


def end_a_request(store: WorkerStore, url: str, request_id: str = "r-1", **target: str) -> None:
    """As the router does it: the entry of the stream ends as failed, with its webhook."""
    stream = store.keys.requests("standard")
    with suppress(ResponseError):  # there is one
        store.redis.xgroup_create(stream, "router", mkstream=True)
    entry_id = store.redis.xadd(stream, {"m": b"x"}).decode()
    store.redis.xreadgroup("router", "test", {stream: ">"})
    outcome = store.refuse(
        sla="standard",
        entry_id=entry_id,
        request_id=request_id,
        tenant="default",
        end=EndEvent(status="failed", error="why", code="bad_request"),
        body=b"x",
        webhook=WebhookTarget(url=url, **target),
        dead=True,
    )
    assert outcome == "refused", outcome
