"""/v1/messages: one answer, or its events; /v1/messages/count_tokens: what it would take.

Errors have Anthropic's shape (ingest/errors.py). A client that goes before its answer is complete
cancels it.
"""

from collections.abc import AsyncIterator, Iterator

from anyio.to_thread import run_sync
from fastapi import APIRouter, Request
from fastapi.responses import Response

from ingest.access.gate import key_of, needs
from ingest.anthropic.asked import NAMES, check, fields_of
from ingest.anthropic.shape import Event, Output, stop_sequence_in
from ingest.body import read_fields
from ingest.desk import Desk
from ingest.errors import ApiError, anthropic_object, refused
from ingest.renamed import in_words_of
from ingest.shapes import Json
from ingest.sse import EventStream, awaited, frame, json_response
from ingest.turn import EndPiece, Piece, Turn, begin
from workers.wire import TokenEvent

routes = APIRouter(dependencies=[needs("infer")])


@routes.post("/v1/messages")
async def create(request: Request) -> Response:
    """Accepts it, then waits for its end or hands out its events."""
    desk: Desk = request.app.state.desk
    body = await read_fields(request)
    check(body)
    if body.get("max_tokens") is None:
        raise refused("max_tokens", "is required")
    with in_words_of(NAMES):
        fields = fields_of(body, request.headers)
        turn = await begin(desk, fields, key=key_of(request), door="messages")
    if body.get("stream"):
        return EventStream(frames(desk, turn), turn.gone)
    return await awaited(whole(desk, turn), request.receive, turn.gone)


@routes.post("/v1/messages/count_tokens")
async def count_tokens(request: Request) -> Response:
    """Tokens of the prompt that a request with these messages, system and tools would have."""
    desk: Desk = request.app.state.desk
    text = desk.text_model()
    body = await read_fields(request)
    check(body)
    with in_words_of(NAMES):
        fields = fields_of({**body, "max_tokens": None, "session_id": None}, {})
        admitted = await run_sync(desk.admitted, fields, text)
    return json_response({"input_tokens": len(admitted.token_ids)})


async def whole(desk: Desk, turn: Turn) -> Json:
    """The complete message. Raises ApiError when there is none."""
    output = Output(turn.request)
    async for pieces in turn.pieces():
        for piece in pieces:
            for _ in output.piece(piece, await stopped_by(desk, turn, piece)):
                pass
    return output.message


async def frames(desk: Desk, turn: Turn) -> AsyncIterator[bytes]:
    """The events in order; what fails is the last of them."""
    output = Output(turn.request)
    out = told(output.begin())
    try:
        async for pieces in turn.pieces():
            for piece in pieces:
                out += told(output.piece(piece, await stopped_by(desk, turn, piece)))
            yield out or told(iter([("ping", {})]))
            out = b""
    except ApiError as error:
        yield out + frame(anthropic_object(error), event="error")


def told(events: Iterator[Event]) -> bytes:
    """Each is encoded before the next one is made."""
    return b"".join(frame({"type": kind, **fields}, event=kind) for kind, fields in events)


async def stopped_by(desk: Desk, turn: Turn, piece: Piece) -> str | None:
    """The stop string that ended the answer, told by the journal; of other pieces None."""
    stops = turn.request.params.stop
    if not isinstance(piece, EndPiece) or piece.finish_reason != "stop" or not stops:
        return None
    entries = await run_sync(desk.store.tokens, turn.request.id)
    tokens = [event for _, event in entries if isinstance(event, TokenEvent)]
    return stop_sequence_in(tokens, stops, turn.text)
