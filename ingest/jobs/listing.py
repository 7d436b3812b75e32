"""GET /v1/jobs: the tenant's jobs, newest first, filtered, a page at a time.

    ?state=failed,expired&sla=batch&session=s&since=2026-11-30T08:00:00Z&until=...&limit=50
    ?after=NEXT     where the last page ended: its `next`

A result that has expired is in no list any more; what a plain XADD has put on a stream is in one as
soon as a router has placed it.
"""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

from anyio.to_thread import run_sync
from fastapi import APIRouter, Request
from fastapi.responses import Response

from ingest.access.gate import key_of, needs
from ingest.desk import Desk
from ingest.errors import refused
from ingest.jobs.routes import job_object
from ingest.sessions.routes import limit_of
from ingest.sse import json_response
from workers.job_list import FIELDS, Page, Place, Wanted, list_jobs, parse_place
from workers.wire import SESSION_ID, STATES

routes = APIRouter(dependencies=[needs("jobs")])

KNOWN: Final = ("state", "sla", "session", "since", "until", "limit", "after")
MS: Final = re.compile(r"[0-9]{1,16}")
IN_OBJECTS: Final = ("error", "code", "prompt_tokens", "output_tokens", "cached_tokens")
LISTED: Final = ("id", *(name for name in FIELDS if name not in IN_OBJECTS))


@routes.get("/v1/jobs")
async def list_of_jobs(request: Request) -> Response:
    """One page, in OpenAI's shape of a list."""
    desk: Desk = request.app.state.desk
    asked = request.query_params
    for name in asked:
        if name not in KNOWN:
            raise refused(name, f"is no filter; there are {', '.join(KNOWN)}")
    wanted = wanted_of(asked, key_of(request).tenant, desk.keys.classes)
    limit, after = limit_of(asked.get("limit")), after_of(asked.get("after"))
    page = await run_sync(partial(list_jobs, desk.store, wanted, limit=limit, after=after))
    return json_response(page_object(page))


def wanted_of(asked: Mapping[str, str], tenant: str, classes: tuple[str, ...]) -> Wanted:
    """The filters of a query. Raises ApiError 400 that names the wrong one."""
    states = [state for state in asked.get("state", "").split(",") if state]
    if wrong := [state for state in states if state not in STATES]:
        raise refused("state", f"must be of {', '.join(STATES)}, got {wrong[0][:40]!r}")
    sla, session = asked.get("sla"), asked.get("session")
    if sla is not None and sla not in classes:
        raise refused("sla", f"must be one of {', '.join(classes)}, got {sla[:40]!r}")
    if session is not None and not SESSION_ID.fullmatch(session):
        raise refused("session", f"is no name of a session: {session[:40]!r}")
    since_ms, until_ms = time_of("since", asked), time_of("until", asked)
    return Wanted(tenant, frozenset(states), sla, session, since_ms, until_ms)


def time_of(name: str, asked: Mapping[str, str]) -> int | None:
    """Unix ms of a number of ms, or of a date as ISO 8601 writes it, in UTC unless it says."""
    text = asked.get(name)
    if text is None:
        return None
    if MS.fullmatch(text):
        return int(text)
    try:
        moment = datetime.fromisoformat(text.replace(" ", "+"))  # a + that nobody has escaped
    except ValueError:
        allowed = "must be Unix milliseconds, or a date like 2026-11-30T08:00:00Z"
        raise refused(name, f"{allowed}, got {text[:40]!r}") from None
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return int(aware.timestamp() * 1000)


def after_of(text: str | None) -> Place | None:
    """Raises ApiError."""
    try:
        return parse_place(text) if text else None
    except ValueError as error:
        raise refused("after", f"{error}, got {text[:80]!r}" if text else str(error)) from None


def page_object(page: Page) -> dict[str, Any]:
    """next: what `after` goes on with, also where this page is short; null: that was all."""
    data = [job_object(job, LISTED) for job in page.jobs]
    return {
        "object": "list",
        "data": data,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
        "has_more": page.next is not None,
        "next": None if page.next is None else str(page.next),
    }
