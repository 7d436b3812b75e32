"""/v1/jobs: requests that outlive their client. Put in, looked at, followed, promoted, cancelled.

POST /v1/jobs            202 {id, status}, Location
GET /v1/jobs/ID          what is known of it
GET /v1/jobs/ID/events   its tokens and its end as server-sent events, resumable by Last-Event-ID
DELETE /v1/jobs/ID       cancel
POST /v1/jobs/ID/promote {sla}: another class, while it waits or runs; its stream goes on
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Final

from anyio.to_thread import run_sync
from fastapi import APIRouter, Request
from fastapi.responses import Response

from ingest.access.gate import key_of, needs
from ingest.body import read_fields
from ingest.desk import Desk
from ingest.errors import ApiError, refused
from ingest.fields import request_fields
from ingest.jobs.past import follow
from ingest.jobs.unread import known
from ingest.shapes import usage_object
from ingest.sse import KEEP_ALIVE, EventStream, frame, json_response
from ingest.tokens import Stopping, order
from router.schema import request_schema
from workers.timings import timings_of
from workers.wire import END_ENTRY_ID, TERMINAL, EndEvent, TokenEvent, split_id
from workers.wire_fields import end_of

routes = APIRouter(dependencies=[needs("jobs")])

SHOWN: Final[tuple[str, ...]] = (
    *("id", "status", "sla", "model", "plan", "pool", "then_pool", "reason", "moves", "worker"),
    *("attempts", "text", "predicted_ttft_ms", "retry_after_s"),
    *("finish_reason", "digest", "ttft_ms", "tpot_ms", "queue_ms", "arrival_ms", "queued_ms"),
    *("started_ms", "ended_ms", "deadline_ms", "metadata", "webhook_url"),
    *("session_id", "forked_at"),
)
WEBHOOK_SHOWN: Final = ("url", "state", "attempts", "last_status", "last_error", "next_at")


@routes.post("/v1/jobs")
async def create(request: Request) -> Response:
    """Accepts a request; an id that is known already gives its first request's job."""
    desk: Desk = request.app.state.desk
    body = await read_fields(request)
    fields = request_fields(body, request.headers)
    receipt = await desk.accept(fields, key=key_of(request), door="jobs")
    request_id = own_id(receipt.request.id)
    answer = {
        "id": request_id,
        "object": "job",
        "status": receipt.status,
        "sla": receipt.request.sla,
        "events": f"/v1/jobs/{request_id}/events",
    }
    response = json_response(answer, 202 if receipt.is_new else 200)
    response.headers["Location"] = f"/v1/jobs/{request_id}"
    return response


@routes.get("/v1/schema")
async def schema(request: Request) -> Response:
    """What a request may hold, whichever way it comes."""
    desk: Desk = request.app.state.desk
    return json_response(request_schema(desk.settings.classes.names))


@routes.get("/v1/jobs/{request_id}")
async def show(request_id: str, request: Request) -> Response:
    """The job's status, and its result once it has one."""
    desk: Desk = request.app.state.desk
    full = asked_for(request, request_id)
    job = await find(desk, full)
    answer = job_object(job)
    if "webhook_url" in job:
        webhook = await run_sync(desk.store.webhook, full)
        answer["webhook"] = {name: webhook[name] for name in WEBHOOK_SHOWN if name in webhook}
    return json_response(answer)


@routes.delete("/v1/jobs/{request_id}")
async def cancel(request_id: str, request: Request) -> Response:
    """Gives `cancelled` (it waited), `cancelling` (its pool was told) or `ended` (it was over)."""
    desk: Desk = request.app.state.desk
    result = await run_sync(desk.store.cancel, asked_for(request, request_id))
    if result == "unknown":
        raise unknown(request_id)
    return json_response({"id": request_id, "object": "job", "result": result})


@routes.post("/v1/jobs/{request_id}/promote")
async def promote(request_id: str, request: Request) -> Response:
    """Gives `promoted`, `demoted` or `same` (it has that class). 409: the request has ended."""
    desk: Desk = request.app.state.desk
    sla = (await read_fields(request)).get("sla")
    classes = desk.keys.classes
    if not isinstance(sla, str) or sla not in classes:
        raise refused("sla", f"must be one of {', '.join(classes)}, got {sla!r}")
    told = await run_sync(desk.store.promote, asked_for(request, request_id), sla)
    if told.result == "unknown":
        raise unknown(request_id)
    if told.result == "ended":
        reason = f"id: {request_id} has ended; its class is {told.was} for ever"
        raise ApiError(409, reason, param="id", code="ended")
    answer = {"id": request_id, "object": "job", "result": told.result, "sla": sla, "was": told.was}
    return json_response(answer)


@routes.get("/v1/jobs/{request_id}/events")
async def events(request_id: str, request: Request) -> Response:
    """Tokens and end. Whoever comes back after the end gets 204, which means: stay away."""
    desk: Desk = request.app.state.desk
    full = asked_for(request, request_id)
    await find(desk, full)
    after = request.headers.get("last-event-id") or request.query_params.get("after") or "0-0"
    try:
        is_over = order(after) >= order(END_ENTRY_ID)
    except ValueError as error:
        raise ApiError(400, f"Last-Event-ID: {error}", param="Last-Event-ID") from None
    if is_over:
        return Response(status_code=204)
    return EventStream(event_frames(desk, full, after))


async def event_frames(desk: Desk, request_id: str, after: str) -> AsyncIterator[bytes]:
    """One frame an entry. A process that ends closes the stream; its client resumes it."""
    try:
        async for entries in follow(desk.store, desk.reader, request_id, after):
            frames = [event_frame(entry_id, event) for entry_id, event in entries]
            yield b"".join(frames) or KEEP_ALIVE
    except Stopping:
        return


def event_frame(entry_id: str, event: TokenEvent | EndEvent) -> bytes:
    if isinstance(event, TokenEvent):
        data: dict[str, Any] = {
            "index": event.index,
            "token_id": event.token_id,
            "text": event.text,
            "digest": event.digest,
        }
        if event.logprobs is not None:
            data["logprobs"] = event.logprobs
        return frame(data, event="token", entry_id=entry_id)
    data = {
        "status": event.status,
        "finish_reason": event.finish_reason,
        "text": event.text,
        "error": error_of(event.error, event.code),
        "digest": event.digest,
        "usage": usage_object(event.usage) if event.usage else None,
        "ttft_ms": event.ttft_ms,
        "tpot_ms": event.tpot_ms,
        "queue_ms": event.queue_ms,
        "sla": event.sla,
        "timings": timings_of(event),
    }
    if event.session_id is not None:
        data |= {"session_id": event.session_id, "forked_at": event.forked_at}
    return frame(data, event="end", entry_id=entry_id)


def asked_for(request: Request, own: str) -> str:
    """The full id of a job that the path names. Raises ApiError 404 for what is no id."""
    full = key_of(request).full_id(own)
    if full is None:
        raise unknown(own)
    return full


def own_id(full: str) -> str:
    """What a request's tenant calls it."""
    return split_id(full)[1]


async def find(desk: Desk, full: str) -> dict[str, Any]:
    """The job's hash. Raises ApiError 404."""
    job = await run_sync(known, desk.store, full)
    if job is None:
        raise unknown(own_id(full))
    return job


def unknown(request_id: str) -> ApiError:
    return ApiError(
        404, f"id: there is no job {request_id[:100]!r}", param="id", code="job_not_found"
    )


def job_object(job: Mapping[str, Any], names: Sequence[str] = SHOWN) -> dict[str, Any]:
    """A job as the API shows it, of its fields these; what is not known yet is left out."""
    shown = {name: job[name] for name in names if name in job} | {"id": own_id(job["id"])}
    end = end_of(job)
    return {
        "object": "job",
        **shown,
        "usage": usage_object(end.usage) if end.usage else None,
        "timings": timings_of(end) if end.status in TERMINAL else None,
        "error": error_of(job.get("error"), job.get("code")),
    }


def error_of(message: str | None, code: str | None) -> dict[str, Any] | None:
    return {"message": message, "code": code} if message else None
