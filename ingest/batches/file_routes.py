"""/v1/files: what clients upload for batches, and what batches give them.

POST /v1/files               multipart: file, purpose "batch", expires_after[seconds]
GET /v1/files                the newest first: limit, after, order, purpose
GET /v1/files/ID             what is known of it
GET /v1/files/ID/content     its bytes; of a batch that runs, its rows so far
DELETE /v1/files/ID          409 while a batch uses it
"""

import time
from itertools import islice
from typing import Any, Final

from anyio.to_thread import run_sync
from fastapi import APIRouter, Request
from fastapi.responses import Response, StreamingResponse

from ingest.access.gate import key_of, needs
from ingest.batches.clerk import Clerk
from ingest.batches.rows import whole_rows_end
from ingest.batches.shelf import FileRecord, NoRoom, Shelf, new_id, pieces
from ingest.batches.upload import Form, read_form
from ingest.errors import ApiError, refused
from ingest.pages import page_of, whole_number
from ingest.sse import json_response

routes = APIRouter(dependencies=[needs("jobs")])

FILE_BYTES_MAX: Final = 200 * 2**20  # as OpenAI has it for the input of a batch
KEPT_S: Final = 30 * 86_400  # unless expires_after says another time
KEPT_MIN_S, KEPT_MAX_S = 3600, 30 * 86_400
LIMIT: Final = 10_000
PURPOSES: Final = ("batch",)
RETRY_FULL_S: Final = 60


@routes.post("/v1/files")
async def create(request: Request) -> Response:
    """Takes a file: it is on the disk when this answers."""
    clerk: Clerk = request.app.state.clerk
    tenant = key_of(request).tenant
    declared = request.headers.get("content-length", "")
    await check_room(clerk.shelf, tenant, int(declared) if declared.isdigit() else FILE_BYTES_MAX)
    with await run_sync(clerk.shelf.upload) as uploaded:
        form = await read_form(request, uploaded, FILE_BYTES_MAX)
        record = record_of(form)
        await run_sync(clerk.shelf.add, tenant, uploaded, record)
    return json_response(file_object(record, form.file_bytes))


@routes.get("/v1/files")
async def list_files(request: Request) -> Response:
    """One page, in OpenAI's shape of a list."""
    clerk: Clerk = request.app.state.clerk
    return json_response(await run_sync(page, clerk.shelf, key_of(request).tenant, request))


@routes.get("/v1/files/{file_id}")
async def show(file_id: str, request: Request) -> Response:
    clerk: Clerk = request.app.state.clerk
    tenant = key_of(request).tenant
    record = await run_sync(found, clerk.shelf, tenant, file_id)
    return json_response(file_object(record, clerk.shelf.num_bytes(tenant, file_id)))


@routes.get("/v1/files/{file_id}/content")
async def content(file_id: str, request: Request) -> Response:
    """The bytes that are there now, whole rows."""
    clerk: Clerk = request.app.state.clerk
    tenant = key_of(request).tenant
    record = await run_sync(found, clerk.shelf, tenant, file_id)
    path = clerk.shelf.path(tenant, file_id)
    if record.purpose == "batch_output":
        end = await run_sync(whole_rows_end, path)
    else:
        end = path.stat().st_size
    return StreamingResponse(
        pieces(path, end),
        media_type="application/octet-stream",
        headers={"Content-Length": str(end), "X-Content-Type-Options": "nosniff"},
    )


@routes.delete("/v1/files/{file_id}")
async def delete(file_id: str, request: Request) -> Response:
    clerk: Clerk = request.app.state.clerk
    tenant = key_of(request).tenant
    await run_sync(found, clerk.shelf, tenant, file_id)
    if users := await run_sync(clerk.books.users, tenant, file_id):
        reason = f"file_id: batch {users[0]} uses it and is not over; cancel it or ask again"
        raise ApiError(409, reason, param="file_id", code="file_in_use")
    await run_sync(clerk.shelf.remove, tenant, file_id)
    return json_response({"id": file_id, "object": "file", "deleted": True})


async def check_room(shelf: Shelf, tenant: str, num_bytes: int) -> None:
    try:
        await run_sync(shelf.check_room, tenant, num_bytes)
    except NoRoom as full:
        reason = f"file: {full}"
        raise ApiError(
            507, reason, param="file", code="no_room", retry_after_s=RETRY_FULL_S
        ) from None


def record_of(form: Form) -> FileRecord:
    """Raises ApiError that names the field."""
    purpose = form.fields.get("purpose")
    if purpose not in PURPOSES:
        raise refused("purpose", f"must be {' or '.join(PURPOSES)}, got {purpose!r}")
    now_s = int(time.time())
    return FileRecord(
        id=new_id("file-"),
        filename=form.filename or "upload.jsonl",
        purpose=purpose,
        created_at=now_s,
        expires_at=now_s + kept_s(form.fields.get("expires_after[seconds]"), form.fields),
    )


def kept_s(seconds: Any, fields: dict[str, Any]) -> int:
    """What expires_after asks for. Raises ApiError."""
    anchor = fields.get("expires_after[anchor]", "created_at")
    if anchor != "created_at":
        raise refused("expires_after[anchor]", "must be created_at")
    return (
        KEPT_S
        if seconds is None
        else whole_number("expires_after[seconds]", seconds, KEPT_MIN_S, KEPT_MAX_S)
    )


def found(shelf: Shelf, tenant: str, file_id: str) -> FileRecord:
    """Raises ApiError 404."""
    record = shelf.record(tenant, file_id)
    if record is None:
        reason = f"file_id: there is no file {file_id[:80]!r}"
        raise ApiError(404, reason, param="file_id", code="file_not_found")
    return record


def page(shelf: Shelf, tenant: str, request: Request) -> dict[str, Any]:
    """Raises ApiError."""
    asked = request.query_params
    limit = whole_number("limit", asked.get("limit", str(LIMIT)), 1, LIMIT)
    order, purpose = asked.get("order", "desc"), asked.get("purpose")
    if order not in ("asc", "desc"):
        raise refused("order", "must be asc or desc")
    newest_first = order == "desc"
    records = shelf.records(tenant, newest_first=newest_first, after=asked.get("after", ""))
    wanted = (r for r in records if purpose in (None, r.purpose))
    some = list(islice(wanted, limit + 1))
    return page_of([file_object(r, shelf.num_bytes(tenant, r.id)) for r in some], limit)


def file_object(record: FileRecord, num_bytes: int) -> dict[str, Any]:
    return {
        "id": record.id,
        "object": "file",
        "bytes": num_bytes,
        "created_at": record.created_at,
        "expires_at": record.expires_at,
        "filename": record.filename,
        "purpose": record.purpose,
        "status": "processed",
    }
