"""/v1/responses: answered, streamed, or worked on while nobody waits; kept unless store is false.

POST /v1/responses                  the response, or its events with stream
GET /v1/responses/ID                as it is now; with stream=true its events, after starting_after
GET /v1/responses/ID/input_items    what was sent
POST /v1/responses/ID/cancel        what has been said stays
DELETE /v1/responses/ID             it is forgotten; the session goes by DELETE /v1/sessions/ID

A response whose client goes before its end is cancelled, unless it was asked for in the background.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Final

from anyio.to_thread import run_sync
from fastapi import APIRouter, Request
from fastapi.responses import Response

from ingest.access.gate import key_of, needs
from ingest.body import read_fields
from ingest.desk import Desk
from ingest.errors import ApiError
from ingest.pages import page_of, whole_number
from ingest.renamed import in_words_of
from ingest.responses.asked import NAMES, check
from ingest.responses.chain import UNDER_WAY
from ingest.responses.going import Going, again, begun, frames, settled, unknown, whole
from ingest.responses.kept import Kept, Shelf
from ingest.shapes import Json
from ingest.sse import EventStream, awaited, json_response
from workers.wire import full_id

routes = APIRouter(dependencies=[needs("infer")])

CANCEL_S: Final = 5.0  # a pool stops within a step
LIMIT, LIMIT_MAX = 20, 100
EVENTS_MAX = 10**9 - 1


@routes.post("/v1/responses")
async def create(request: Request) -> Response:
    """Accepts it, then waits for its end or hands out its events."""
    desk: Desk = request.app.state.desk
    body = await read_fields(request)
    check(body)
    with in_words_of(NAMES):
        going = await begun(desk, key_of(request), body, request.headers)
    if body.get("stream"):
        return EventStream(frames(going), leaving(going, body))
    if body.get("background"):
        await going.turn.left()
        return json_response(going.output.response)
    return await awaited(whole(going), request.receive, going.turn.gone)


@routes.get("/v1/responses/{response_id}")
async def show(response_id: str, request: Request) -> Response:
    desk: Desk = request.app.state.desk
    shelf = Shelf(desk.store, key_of(request).tenant)
    kept = await found(shelf, response_id)
    if request.query_params.get("stream") == "true":
        given = request.query_params.get("starting_after")
        after = -1 if given is None else whole_number("starting_after", given, 0, EVENTS_MAX)
        going = await again(desk, shelf, kept)
        return EventStream(frames(going, after), leaving(going, kept.response))
    await settled(desk, shelf, kept)
    return json_response(kept.response)


@routes.get("/v1/responses/{response_id}/input_items")
async def list_input(response_id: str, request: Request) -> Response:
    desk: Desk = request.app.state.desk
    kept = await found(Shelf(desk.store, key_of(request).tenant), response_id)
    return json_response(page(kept, request.query_params))


@routes.post("/v1/responses/{response_id}/cancel")
async def cancel(response_id: str, request: Request) -> Response:
    """The response as it is then: cancelled, or ended before."""
    desk: Desk = request.app.state.desk
    shelf = Shelf(desk.store, key_of(request).tenant)
    kept = await found(shelf, response_id)
    if kept.response["status"] in UNDER_WAY:
        await desk.cancel(full_id(shelf.tenant, response_id))
        going = await again(desk, shelf, kept)
        with suppress(TimeoutError, ApiError):
            await asyncio.wait_for(whole(going), CANCEL_S)
        await going.turn.left()
        kept.response = going.output.response
    return json_response(kept.response)


@routes.delete("/v1/responses/{response_id}")
async def delete(response_id: str, request: Request) -> Response:
    """It is forgotten; one that is under way is cancelled, too."""
    desk: Desk = request.app.state.desk
    shelf = Shelf(desk.store, key_of(request).tenant)
    kept = await found(shelf, response_id)
    if not await run_sync(shelf.delete, response_id):
        raise unknown(response_id)
    if kept.response["status"] in UNDER_WAY:
        await desk.cancel(full_id(shelf.tenant, response_id))
    return json_response({"id": response_id, "object": "response", "deleted": True})


def leaving(going: Going, asked: Json) -> Callable[[], Awaitable[None]]:
    """What its stream does when its client goes: work in the background goes on."""
    return going.turn.left if asked.get("background") else going.turn.gone


async def found(shelf: Shelf, response_id: str) -> Kept:
    """Raises ApiError 404."""
    (kept,) = await run_sync(shelf.read, [response_id])
    if kept is None:
        raise unknown(response_id)
    return kept


def page(kept: Kept, asked: Mapping[str, str]) -> Json:
    """OpenAI's list of what was sent, the last first unless order says otherwise."""
    items = [sent_item(kept, index) for index in range(len(kept.input))]
    if asked.get("order", "desc") == "desc":
        items.reverse()
    ids = [item["id"] for item in items]
    after = asked.get("after")
    begin = ids.index(after) + 1 if after in ids else 0
    limit = whole_number("limit", asked.get("limit", str(LIMIT)), 1, LIMIT_MAX)
    return page_of(items[begin : begin + limit + 1], limit)


def sent_item(kept: Kept, index: int) -> Json:
    name = f"in_{kept.id.removeprefix('resp_')}_{index}"
    item = {"id": name, "type": "message", **kept.input[index]}
    if isinstance(item.get("content"), str):
        item["content"] = [{"type": "input_text", "text": item["content"]}]
    return item
