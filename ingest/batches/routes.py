"""/v1/batches: many requests in a file, run as class `batch`, their answers in a file.

POST /v1/batches             {input_file_id, endpoint, completion_window, metadata}
GET /v1/batches              the newest first: limit, after
GET /v1/batches/ID           how far it is; output_file_id can be read from the first row on
POST /v1/batches/ID/cancel   what has not been answered is not
"""

import time
from itertools import islice
from typing import Any

from anyio.to_thread import run_sync
from fastapi import APIRouter, Request
from fastapi.responses import Response

from ingest.access.gate import key_of, needs
from ingest.access.keys import Key
from ingest.batches.answers import APIS
from ingest.batches.clerk import Clerk
from ingest.batches.file_routes import KEPT_MAX_S, KEPT_MIN_S, KEPT_S, found
from ingest.batches.record import BATCH_ID, Batch, batch_object, window_s
from ingest.batches.shelf import new_id
from ingest.body import read_fields
from ingest.errors import ApiError, refused
from ingest.pages import page_of, whole_number
from ingest.sse import json_response

routes = APIRouter(dependencies=[needs("jobs")])

LIMIT, LIMIT_MAX = 20, 100
PAIRS_MAX, PAIR_KEY_MAX, PAIR_VALUE_MAX = 16, 64, 512


@routes.post("/v1/batches")
async def create(request: Request) -> Response:
    """Accepted when this answers; its file is looked through next."""
    clerk: Clerk = request.app.state.clerk
    key = key_of(request)
    batch = batch_of(await read_fields(request), key)
    record = await run_sync(found_input, clerk, key.tenant, batch.input_file_id)
    if record.purpose != "batch":
        raise refused("input_file_id", f"must be a file of purpose batch, got {record.purpose}")
    await run_sync(clerk.books.begin, key.tenant, batch)
    clerk.news.set()
    return json_response(batch_object(batch, None))


@routes.get("/v1/batches")
async def list_batches(request: Request) -> Response:
    """One page, in OpenAI's shape of a list."""
    clerk: Clerk = request.app.state.clerk
    limit = whole_number("limit", request.query_params.get("limit", str(LIMIT)), 1, LIMIT_MAX)
    after = request.query_params.get("after", "")
    return json_response(await run_sync(page, clerk, key_of(request).tenant, limit, after))


@routes.get("/v1/batches/{batch_id}")
async def show(batch_id: str, request: Request) -> Response:
    clerk: Clerk = request.app.state.clerk
    return json_response(await run_sync(shown, clerk, key_of(request).tenant, batch_id))


@routes.post("/v1/batches/{batch_id}/cancel")
async def cancel(batch_id: str, request: Request) -> Response:
    """Says `cancelling`: what runs is told to stop. 409: the batch is over."""
    clerk: Clerk = request.app.state.clerk
    tenant = key_of(request).tenant
    told = await run_sync(shown, clerk, tenant, batch_id)
    if told["status"] in ("completed", "failed", "expired", "cancelled"):
        reason = f"batch_id: {batch_id} is {told['status']} and cannot be cancelled"
        raise ApiError(409, reason, param="batch_id", code="ended")
    await run_sync(clerk.books.cancel, tenant, batch_id)
    return json_response(await run_sync(shown, clerk, tenant, batch_id))


def batch_of(body: dict[str, Any], key: Key) -> Batch:
    """Raises ApiError that names the field."""
    endpoint, window = body.get("endpoint"), body.get("completion_window")
    if not isinstance(endpoint, str) or endpoint not in APIS:
        raise refused("endpoint", f"must be one of {', '.join(APIS)}, got {endpoint!r}")
    seconds = window_s(window) if isinstance(window, str) else None
    if seconds is None:
        allowed = 'must be a number of s, m, h or d up to "30d", such as "24h"'
        raise refused("completion_window", f"{allowed}, got {window!r}")
    file_id = body.get("input_file_id")
    if not isinstance(file_id, str):
        raise refused("input_file_id", "must be the id of an uploaded file")
    now_s = int(time.time())
    return Batch(
        id=new_id("batch_"),
        endpoint=str(endpoint),
        input_file_id=file_id,
        completion_window=str(window),
        created_at=now_s,
        expires_at=now_s + seconds,
        metadata=metadata_of(body.get("metadata")),
        key=key.id,
        kept_s=seconds + kept_s(body.get("output_expires_after")),
    )


def metadata_of(given: Any) -> dict[str, str] | None:
    """OpenAI's: 16 pairs of text at most."""
    if given is None:
        return None
    if not isinstance(given, dict) or len(given) > PAIRS_MAX:
        raise refused("metadata", f"must be an object of at most {PAIRS_MAX} pairs")
    for name, value in given.items():
        is_text = isinstance(value, str) and len(value) <= PAIR_VALUE_MAX
        if not is_text or len(name) > PAIR_KEY_MAX:
            allowed = f"keys of {PAIR_KEY_MAX} characters, texts of {PAIR_VALUE_MAX}"
            raise refused("metadata", f"must hold {allowed} at most")
    return given


def kept_s(given: Any) -> int:
    """What output_expires_after asks for: seconds."""
    if given is None:
        return KEPT_S
    if not isinstance(given, dict) or given.get("anchor", "created_at") != "created_at":
        raise refused("output_expires_after", "must be an object with anchor created_at")
    name = "output_expires_after.seconds"
    return whole_number(name, given.get("seconds"), KEPT_MIN_S, KEPT_MAX_S)


def found_input(clerk: Clerk, tenant: str, file_id: str) -> Any:
    try:
        return found(clerk.shelf, tenant, file_id)
    except ApiError:
        raise refused("input_file_id", f"there is no file {file_id[:80]!r}") from None


def shown(clerk: Clerk, tenant: str, batch_id: str) -> dict[str, Any]:
    """Raises ApiError 404."""
    batch = clerk.books.read(tenant, batch_id)
    if batch is None:
        reason = f"batch_id: there is no batch {batch_id[:80]!r}"
        raise ApiError(404, reason, param="batch_id", code="batch_not_found")
    return batch_object(batch, clerk.books.cancelling_at(tenant, batch_id))


def page(clerk: Clerk, tenant: str, limit: int, after: str) -> dict[str, Any]:
    """Raises ApiError."""
    if after and not BATCH_ID.fullmatch(after):
        raise refused("after", "must be the id of a batch")
    ids = islice(clerk.books.ids(tenant, after=after), limit + 1)
    return page_of([shown(clerk, tenant, batch_id) for batch_id in ids], limit)
