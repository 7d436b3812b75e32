"""A response under way: begun, told as one object or as events, told again from its journal."""

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from secrets import token_hex
from typing import Any

import msgspec
from anyio.to_thread import run_sync

from ingest.access.keys import Key
from ingest.desk import Desk, Receipt
from ingest.errors import ApiError, refused
from ingest.responses.asked import fields_of, tools_of
from ingest.responses.chain import FIELD, UNDER_WAY, Chain, chain_of, not_found, session_for
from ingest.responses.items import input_items
from ingest.responses.kept import Kept, Shelf
from ingest.responses.shape import Event, Output, head_of
from ingest.shapes import Json
from ingest.sse import KEEP_ALIVE, frame
from ingest.turn import Turn, begin, failure, reader_of
from workers.wire import TERMINAL, full_id
from workers.wire import Request as Admitted
from workers.wire_fields import end_of


@dataclass
class Going:
    """A response under way. shelf: where its end is kept; None: nowhere."""

    turn: Turn
    output: Output
    shelf: Shelf | None

    async def keep(self) -> None:
        """As it is now."""
        if self.shelf is not None:
            response = self.output.response
            await run_sync(self.shelf.end, response["id"], response)


async def begun(
    desk: Desk,
    key: Key,
    body: Mapping[str, Any],
    headers: Mapping[str, str],
    *,
    own_id: str | None = None,
    door: str = "responses",
) -> Going:
    """Accepts the request. Raises ApiError.

    own_id  of the response and its request: one that is known already gives what it has become
    """
    own_id = own_id or f"resp_{token_hex(16)}"
    shelf = Shelf(desk.store, key.tenant)
    chain = await followed(desk, shelf, body)
    fields = {**fields_of(body, chain.messages, headers), "id": own_id}
    is_kept = body.get("store") is not False
    if body.get("background") and not is_kept:
        raise refused("background", "needs store to be true")
    session_id = ""
    if "session_id" in fields:
        if chain.last is not None:
            raise refused(FIELD, "goes without session_id: a session has its own history")
    elif is_kept:
        session_id = await run_sync(session_for, shelf, chain, own_id)
        fields |= {"session_id": session_id, "session_mode": "history"}
    turn = await begin(desk, fields, key=key, door=door)
    output = Output(head_of(turn.request, own_id, body), turn.request, turn.text)
    if not is_kept:
        return Going(turn, output, None)
    sent = input_items(body.get("input"))
    await run_sync(shelf.put, Kept(own_id, output.response, sent, chain.ids, session_id))
    return Going(turn, output, shelf)


async def followed(desk: Desk, shelf: Shelf, body: Mapping[str, Any]) -> Chain:
    """The responses before this one. Raises ApiError."""
    previous = body.get(FIELD)
    if previous is None:
        return Chain()
    if not isinstance(previous, str):
        raise refused(FIELD, "must be the id of a response")
    (last,) = await run_sync(shelf.read, [previous])
    if last is None:
        raise not_found(previous)
    await settled(desk, shelf, last)
    return await run_sync(chain_of, shelf, last)


async def whole(going: Going) -> Json:
    """The response once it has ended. Raises ApiError when it has no answer."""
    try:
        async for pieces in going.turn.pieces():
            for piece in pieces:
                for _ in going.output.piece(piece):
                    pass
    except ApiError as error:
        if error.code != "stopping":
            for _ in going.output.failed(error):
                pass
            await going.keep()
        raise
    await going.keep()
    return going.output.response


async def frames(going: Going, after: int = -1) -> AsyncIterator[bytes]:
    """The events behind number `after`, in order; what fails is the last of them."""
    number = -1

    def told(events: Iterator[Event]) -> bytes:
        nonlocal number
        out = []
        for name, fields in events:
            number += 1
            kind = f"response.{name}"
            if number > after:
                event = {"type": kind, "sequence_number": number, **fields}
                out.append(frame(event, event=kind))
        return b"".join(out)

    out = told(going.output.begin())
    try:
        async for pieces in going.turn.pieces():
            out += b"".join(told(going.output.piece(piece)) for piece in pieces)
            yield out or KEEP_ALIVE
            out = b""
    except ApiError as error:
        yield out + told(going.output.failed(error))
        if error.code == "stopping":
            return
    await going.keep()


async def settled(desk: Desk, shelf: Shelf, kept: Kept) -> None:
    """Makes a response that nobody waited for what it has become, when its request has ended."""
    if kept.response["status"] not in UNDER_WAY:
        return
    job = await run_sync(desk.store.job, full_id(shelf.tenant, kept.id))
    if job is None:
        raise unknown(kept.id)
    if job["status"] in TERMINAL:
        going = await again(desk, shelf, kept)
        with suppress(ApiError):
            await whole(going)
        kept.response = going.output.response


async def again(desk: Desk, shelf: Shelf, kept: Kept) -> Going:
    """The same response from its beginning, from the journal of its request. Raises ApiError."""
    job = await run_sync(desk.store.job, full_id(shelf.tenant, kept.id))
    if job is None:
        raise unknown(kept.id)
    if "request" not in job:  # it has not been placed yet, or never was
        if job["status"] in TERMINAL:
            raise failure(end_of(job))
        raise refused("response_id", "it has not begun; ask again", "response_not_begun")
    admitted = msgspec.msgpack.decode(job["request"], type=Admitted)
    visit = desk.visitors.enter(Receipt(admitted, False, job["status"]))
    form = {"messages": [], "chat_template_kwargs": admitted.variables, **tools_of(kept.response)}
    turn = Turn(visit, desk.text_model(), reader_of(form, desk.text_model()))
    head = {**kept.response, "output": [], "usage": None, "status": "in_progress", "error": None}
    return Going(turn, Output(head, admitted, turn.text), shelf)


def unknown(response_id: str) -> ApiError:
    reason = f"response_id: there is no response {response_id[:80]!r}"
    return ApiError(404, reason, param="response_id", code="response_not_found")
