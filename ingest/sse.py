"""Server-sent events: frames, and a response that notices when its client has gone."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar

import msgspec
from fastapi.responses import Response
from starlette.types import Receive, Scope, Send

KEEP_ALIVE: Final = b": waiting\n\n"  # a comment: proxies keep the connection, clients ignore it
DONE: Final = b"data: [DONE]\n\n"

Result = TypeVar("Result")
encode = msgspec.json.Encoder().encode


def frame(data: Any, *, event: str | None = None, entry_id: str | None = None) -> bytes:
    """One event. entry_id is what the client sends back as Last-Event-ID."""
    head = b"" if entry_id is None else b"id: %s\n" % entry_id.encode()
    if event is not None:
        head += b"event: %s\n" % event.encode()
    return head + b"data: " + encode(data) + b"\n\n"


def json_response(content: Any, status: int = 200) -> Response:
    """A JSON answer."""
    return Response(encode(content), status, media_type="application/json")


async def disconnected(receive: Receive) -> None:
    """Returns when the client has gone."""
    while (await receive())["type"] != "http.disconnect":
        pass


@asynccontextmanager
async def unless_gone(
    work: Coroutine[Any, Any, Result], receive: Receive
) -> AsyncIterator[asyncio.Task[Result]]:
    """The work as a task: done, or under way because its client has gone; cancelled afterwards."""
    working = asyncio.create_task(work)
    leaving = asyncio.create_task(disconnected(receive))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        yield working
    finally:
        working.cancel()
        leaving.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def awaited(
    work: Coroutine[Any, Any, Any], receive: Receive, on_gone: Callable[[], Awaitable[None]]
) -> Response:
    """What the work gives, as JSON; nothing for a client that has gone before, told to on_gone."""
    async with unless_gone(work, receive) as working:
        if working.done():
            return json_response(working.result())
        await on_gone()
        return Response(status_code=499)  # nobody reads it


class EventStream(Response):
    """Sends frames as they come; when the client goes first, gives them up and calls `on_gone`."""

    def __init__(
        self, frames: AsyncIterator[bytes], on_gone: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        self.frames = frames
        self.on_gone = on_gone
        self.status_code = 200
        self.background = None
        self.init_headers({"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        self.raw_headers.append((b"content-type", b"text/event-stream; charset=utf-8"))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send(
            {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        )
        async with unless_gone(self._send(send), receive) as sending:
            if sending.done():
                sending.result()
            elif self.on_gone is not None:
                await self.on_gone()

    async def _send(self, send: Send) -> None:
        try:
            async for piece in self.frames:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        finally:
            await self.frames.aclose()  # type: ignore[attr-defined]  # an async generator in all uses
        await send({"type": "http.response.body", "body": b""})
