"""/v1/chat/completions and /v1/completions: accepted, then awaited or streamed.

A synchronous request is cancelled when its client goes before the answer is complete.
"""

from collections.abc import AsyncIterator, Sequence
from functools import partial

from fastapi import APIRouter, Request
from fastapi.responses import Response

from ingest.access.gate import key_of, needs
from ingest.body import read_fields
from ingest.desk import Desk
from ingest.errors import ApiError, error_object
from ingest.fields import request_fields
from ingest.openai.chat import Chat
from ingest.openai.choices import Choice, begin_all, collected, fanned_out, gone, merged, usage_of
from ingest.openai.completion import Completion
from ingest.openai.delivery import Delivery, delivery, split
from ingest.shapes import Json
from ingest.sse import DONE, KEEP_ALIVE, EventStream, awaited, frame
from ingest.turn import EndPiece

routes = APIRouter(dependencies=[needs("infer")])
SHAPES: dict[str, type[Chat] | type[Completion]] = {"chat": Chat, "completions": Completion}


@routes.post("/v1/chat/completions")
async def chat_completions(request: Request) -> Response:
    """One answer to a conversation, or several."""
    return await answer("chat", request)


@routes.post("/v1/completions")
async def completions(request: Request) -> Response:
    """What follows a prompt, or each of several."""
    return await answer("completions", request)


async def answer(api: str, request: Request) -> Response:
    """Accepts the request, then waits for its result or hands out its stream."""
    desk: Desk = request.app.state.desk
    body = await read_fields(request)
    how = delivery(body)
    fields, prompts = split(api, request_fields(body, request.headers))
    key = key_of(request)
    listed = fanned_out(fields, prompts, how.n, key.tenant)
    choices = await begin_all(desk, listed, key=key, door=api)
    shape = SHAPES[api](choices, desk.text_model(), how)
    on_gone = partial(gone, choices)
    if how.stream:
        return EventStream(stream(choices, shape, how), on_gone)
    return await awaited(whole(choices, shape), request.receive, on_gone)


async def whole(choices: Sequence[Choice], shape: Chat | Completion) -> Json:
    """The complete answer."""
    return shape.whole(await collected(choices))


async def stream(
    choices: Sequence[Choice], shape: Chat | Completion, how: Delivery
) -> AsyncIterator[bytes]:
    """The frames of a streamed answer."""
    out = [frame(chunk) for choice in choices for chunk in shape.begin(choice)]
    ends: dict[int, EndPiece] = {}
    try:
        async for choice, pieces in merged(choices):
            if not pieces and not out:
                yield KEEP_ALIVE
                continue
            for piece in pieces:
                out += [frame(chunk) for chunk in shape.piece(choice, piece)]
                if isinstance(piece, EndPiece):
                    ends[choice.index] = piece
            yield b"".join(out)
            out = []
    except ApiError as error:
        yield b"".join(out) + frame(error_object(error)) + DONE
        return
    last = b""
    if how.include_usage:
        usage = usage_of(choices, [ends[choice.index] for choice in choices])
        last = frame({**shape.head, "choices": [], "usage": usage})
    yield last + DONE
