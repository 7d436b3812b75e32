"""/v1/sessions: what conversations are kept here, what is known of one, and forgetting one.

GET /v1/sessions          by id: limit (1 to 1000, default 100), after (the last id one has)
GET /v1/sessions/ID       with its messages, and what goes on in it
DELETE /v1/sessions/ID    its token log and KV go; 409 while a request of it waits or runs

They are those of the key's tenant. Files are read in helper threads, opened at the first question.
"""

from contextlib import suppress
from functools import partial
from typing import Any, Final

from anyio.to_thread import run_sync
from fastapi import APIRouter, Request
from fastapi.responses import Response

from ingest.access.gate import key_of, needs
from ingest.desk import Desk
from ingest.errors import ApiError, refused
from ingest.pages import page_of
from ingest.sessions.holder import held, session_object
from ingest.sse import json_response
from workers.wire import full_id, split_id

routes = APIRouter(dependencies=[needs("sessions")])

LIMIT: Final = 100
LIMIT_MAX: Final = 1000
RETRY_HELD_S: Final = 2


@routes.get("/v1/sessions")
async def list_sessions(request: Request) -> Response:
    """One page, in OpenAI's shape of a list."""
    desk: Desk = request.app.state.desk
    limit = limit_of(request.query_params.get("limit"))
    after = request.query_params.get("after") or ""
    return json_response(await run_sync(partial(page, desk, key_of(request).tenant, limit, after)))


@routes.get("/v1/sessions/{session_id}")
async def show(session_id: str, request: Request) -> Response:
    desk: Desk = request.app.state.desk
    return json_response(await run_sync(partial(details, desk, key_of(request).tenant, session_id)))


@routes.delete("/v1/sessions/{session_id}")
async def delete(session_id: str, request: Request) -> Response:
    desk: Desk = request.app.state.desk
    return json_response(await run_sync(partial(forget, desk, key_of(request).tenant, session_id)))


def page(desk: Desk, tenant: str, limit: int, after: str) -> dict[str, Any]:
    """At most `limit` sessions of a tenant behind the one called `after`."""
    rows = desk.tier().ledger.list_sessions(tenant, limit=limit + 1, after=(tenant, after))
    return page_of([session_object(row) for row in rows], limit)


def details(desk: Desk, tenant: str, session_id: str) -> dict[str, Any]:
    """Raises ApiError."""
    tier = desk.tier()
    manifest = head_of(desk, tenant, session_id)
    known = desk.store.session(full_id(tenant, session_id))
    row = tier.ledger.session(tenant, session_id)
    answer = {
        "id": session_id,
        "object": "session",
        "tenant": manifest.tenant,
        "model": manifest.model,
        "tokens": len(manifest.token_ids),
        "kv_tokens": manifest.num_kv,
        "kv_bytes": row.bytes if row else 0,
        "checkpoints": [point.position for point in manifest.checkpoints],
        "pinned": row.pinned if row else False,
        "created_ms": manifest.created_ms,
        "used_ms": manifest.used_ms,
        "generation": manifest.generation,
        "last_request": manifest.last_request,
        "digest": manifest.digest,
        "forked_from": manifest.forked_from or None,
        "messages": [{"role": m.role, "content": m.content} for m in manifest.messages],
    }
    went_on = {name: known.get(name) for name in ("waiting", "pool", "home", "writing")}
    holder = known.get("holder")
    return answer | {"holder": holder and split_id(holder)[1]} | went_on


def forget(desk: Desk, tenant: str, session_id: str) -> dict[str, Any]:
    """Raises ApiError: 404 when there is none, 409 when it is in use."""
    from workers.session.files import (
        forget_stored,
    )  # a door whose sessions nobody asks for is small

    full = full_id(tenant, session_id)
    known = desk.store.session(full)
    if not is_damaged(desk, tenant, session_id) and "generation" not in known:
        head_of(desk, tenant, session_id)  # one that nobody can read goes, too, and what was of one
    reason = held(known)
    if reason is not None:
        message = f"id: session {session_id!r} is in use: {reason}; cancel it or ask again"
        raise ApiError(409, message, param="id", code="session_in_use", retry_after_s=RETRY_HELD_S)
    freed = desk.tier().drop(tenant, session_id)
    desk.store.session_forget(full)
    forget_stored(desk.settings, desk.tier(), tenant, session_id)
    return {"id": session_id, "object": "session.deleted", "deleted": True, "bytes": freed}


def is_damaged(desk: Desk, tenant: str, session_id: str) -> bool:
    with suppress(ValueError):
        return desk.tier().sessions.damaged(tenant, session_id) > 0
    return False


def head_of(desk: Desk, tenant: str, session_id: str) -> Any:
    """The session's manifest. Raises ApiError: 400 for what is no name, 404 for none of ours."""
    try:
        manifest = desk.tier().sessions.head(tenant, session_id)
    except ValueError:
        reason = "1 to 64 letters, digits, - and _, without --"
        raise refused("id", f"must be {reason}, got {session_id[:100]!r}") from None
    if manifest is None:
        message = f"id: there is no session {session_id!r}"
        raise ApiError(404, message, param="id", code="session_not_found")
    return manifest


def limit_of(text: str | None) -> int:
    """Raises ApiError."""
    if text is None:
        return LIMIT
    is_number = text.isascii() and text.isdigit() and len(text) < 6
    if not is_number or not 1 <= int(text) <= LIMIT_MAX:
        raise refused("limit", f"must be 1 to {LIMIT_MAX}, got {text[:40]!r}")
    return int(text)
