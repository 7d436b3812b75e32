"""GET /v1/node/events: the node as it is, once a second, to all who watch; one look serves them.

    event: node      data: what look.py says            event: away      the store does not answer

Nobody looks while nobody watches. Who reads slowly gets fewer looks, never old ones.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Final

from anyio.to_thread import run_sync
from fastapi import APIRouter, Request
from fastapi.responses import Response
from redis.exceptions import RedisError

from ingest.access.gate import needs
from ingest.dashboard.look import look
from ingest.desk import Desk
from ingest.shapes import Json
from ingest.sse import EventStream, frame, json_response
from workers.log import logger

EVERY_S: Final = 1.0

routes = APIRouter(dependencies=[needs("metrics")])


@routes.get("/v1/node/events")
async def events(request: Request) -> Response:
    """Looks as server-sent events, until the client goes or this process ends."""
    feed: Feed = request.app.state.feed
    return EventStream(feed.frames())


@routes.get("/v1/node")
async def node(request: Request) -> Response:
    """One look."""
    desk: Desk = request.app.state.desk
    return json_response(await run_sync(whole_look, desk))


def whole_look(desk: Desk) -> Json:
    """With what runs anywhere in the fleet."""
    return look(desk.store, desk.settings.home, fleet=True)


class Feed:
    """One for the process. watchers: how many there are; the last one to go ends the looking."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.watchers = 0
        self.next: asyncio.Future[bytes] | None = None
        self.looking: asyncio.Task[None] | None = None

    async def frames(self) -> AsyncIterator[bytes]:
        """Each look as it comes, from the next one on."""
        self.watchers += 1
        try:
            while not self.desk.reader.stopped:
                yield await asyncio.shield(self.coming())
        finally:
            self.watchers -= 1

    def coming(self) -> asyncio.Future[bytes]:
        """The next look."""
        if self.looking is None or self.looking.done() or self.next is None:
            self.next = asyncio.get_running_loop().create_future()
            self.looking = asyncio.create_task(self.run())
        return self.next

    async def run(self) -> None:
        """Looks as long as anybody watches."""
        loop = asyncio.get_running_loop()
        while self.watchers and not self.desk.reader.stopped:
            told = await self.look()
            done, self.next = self.next, loop.create_future()
            assert done is not None
            done.set_result(told)
            await asyncio.sleep(EVERY_S)
        if self.next is not None:
            self.next.set_result(b": bye\n\n")

    async def look(self) -> bytes:
        try:
            told = await run_sync(whole_look, self.desk)
        except (RedisError, OSError):
            return frame({"error": "the store does not answer"}, event="away")
        except Exception as error:  # of a record that somebody wrote by hand
            logger("api").warning("a look at the node failed", error=str(error)[:200])
            return frame({"error": "the node cannot be looked at; its log says why"}, event="away")
        return frame(told, event="node")
