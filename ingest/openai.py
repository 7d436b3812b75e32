"""/v1/chat/completions, /v1/completions, /v1/models, /v1/tokenize: what OpenAI's clients expect.

A synchronous request is cancelled when its client goes before the answer is complete.
"""

from collections.abc import AsyncIterator
from typing import Final

from anyio.to_thread import run_sync
from fastapi import APIRouter, Request
from fastapi.responses import Response

from ingest.body import read_fields
from ingest.desk import Desk, Visit
from ingest.errors import ApiError, error_object, status_of
from ingest.fields import Delivery, delivery, openai_fields, request_fields
from ingest.gate import key_of, needs
from ingest.shapes import SHAPES, Chat, Completion, Json
from ingest.sse import DONE, KEEP_ALIVE, EventStream, frame, json_response, unless_gone
from ingest.tokens import Stopping
from workers.wire import EndEvent, TokenEvent

TOKENIZED: Final[tuple[str, ...]] = ("model", "prompt", "messages")  # fields that count there
RETRY_STOPPING_S: Final = 2  # the next process is there by then

routes = APIRouter(dependencies=[needs("infer")])


@routes.post("/v1/chat/completions")
async def chat_completions(request: Request) -> Response:
    """One answer to a conversation."""
    return await answer("chat", request)


@routes.post("/v1/completions")
async def completions(request: Request) -> Response:
    """What follows a prompt."""
    return await answer("completions", request)


@routes.get("/v1/models")
async def models(request: Request) -> Response:
    """The one model that is served."""
    return json_response({"object": "list", "data": [model_object(request.app.state.desk)]})


@routes.get("/v1/models/{name}")
async def model(name: str, request: Request) -> Response:
    found = model_object(request.app.state.desk)
    if name != found["id"]:
        raise ApiError(404, f"model: there is no {name!r}", param="model", code="model_not_found")
    return json_response(found)


@routes.post("/v1/tokenize")
async def tokenize(request: Request) -> Response:
    """The token ids of a prompt or of messages, as a request with them would have them."""
    desk: Desk = request.app.state.desk
    text = desk.text_model()
    body = await read_fields(request)
    fields = request_fields({name: body.get(name) for name in TOKENIZED}, {})
    ids = (await run_sync(desk.admitted, fields, text)).token_ids
    return json_response({"count": len(ids), "max_model_len": text.context_length, "tokens": ids})


def model_object(desk: Desk) -> Json:
    text = desk.text_model()
    return {
        "id": text.name,
        "object": "model",
        "created": desk.started_s,
        "owned_by": "lockstep",
        "max_model_len": text.context_length,
    }


async def answer(api: str, request: Request) -> Response:
    """Accepts the request, then waits for its result or hands out its stream."""
    desk: Desk = request.app.state.desk
    body = await read_fields(request)
    how = delivery(body)
    fields = openai_fields(api, body, request.headers)
    receipt = await desk.accept(fields, key=key_of(request), door=api)
    shape = SHAPES[api](receipt.request, desk.text_model())
    visit = desk.visitors.enter(receipt)
    if how.include_usage:
        shape.head["usage"] = None  # in every chunk but the one that has it
    if how.stream:
        return EventStream(stream(visit, shape, how), visit.gone)
    return await whole(visit, shape, request)


async def whole(visit: Visit, shape: Chat | Completion, request: Request) -> Response:
    """The complete answer, or nothing for a client that has gone."""
    async with unless_gone(collect(visit), request.receive) as collecting:
        if not collecting.done():
            await visit.gone()
            return Response(status_code=499)  # nobody reads it
        tokens, end = collecting.result()
    if end.status != "finished":
        raise failure(end)
    return json_response(shape.whole(tokens, end))


async def collect(visit: Visit) -> tuple[list[TokenEvent], EndEvent]:
    """All events of a request. Raises ApiError 503 when this process ends first."""
    tokens: list[TokenEvent] = []
    try:
        async for entries in visit.events():
            for _, event in entries:
                if isinstance(event, EndEvent):
                    visit.ended(event)
                    return tokens, event
                tokens.append(event)
    except Stopping:
        visit.leave()
        raise stopping(visit.request.id) from None
    raise AssertionError("a token stream ended without its end event")


async def stream(visit: Visit, shape: Chat | Completion, how: Delivery) -> AsyncIterator[bytes]:
    """The frames of a streamed answer."""
    out = [frame(chunk) for chunk in shape.begin()]
    try:
        async for entries in visit.events():
            if not entries:
                yield KEEP_ALIVE
                continue
            for _, event in entries:
                out += frames_of(event, visit, shape, how)
            if out:
                yield b"".join(out)
            out = []
    except Stopping:
        visit.leave()
        yield frame(error_object(stopping(visit.request.id))) + DONE


def frames_of(
    event: TokenEvent | EndEvent, visit: Visit, shape: Chat | Completion, how: Delivery
) -> list[bytes]:
    if isinstance(event, TokenEvent):
        return [frame(chunk) for chunk in shape.token(event)]
    visit.ended(event)
    return end_frames(shape, event, how)


def end_frames(shape: Chat | Completion, end: EndEvent, how: Delivery) -> list[bytes]:
    """The last frames: reason and usage, or the error; then [DONE]."""
    if end.status != "finished":
        return [frame(error_object(failure(end))), DONE]
    frames = [frame(chunk) for chunk in shape.end(end)]
    if how.include_usage:
        frames.append(frame(shape.usage(end)))
    return [*frames, DONE]


def failure(end: EndEvent) -> ApiError:
    """Why there is no answer."""
    message = end.error or f"the request was {end.status}"
    return ApiError(status_of(end.code or end.status), message, code=end.code or end.status)


def stopping(request_id: str) -> ApiError:
    """The node ends; the request does not."""
    message = f"the node is being restarted; ask again with id {request_id!r}"
    return ApiError(503, message, code="stopping", retry_after_s=RETRY_STOPPING_S)
