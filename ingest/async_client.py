"""The client of ingest/client.py for asyncio: any number of streams over one connection.

    from ingest.async_client import AsyncClient

    async with AsyncClient() as client:
        request_id = await client.enqueue(prompt="The capital of France is", max_tokens=8)
        async for event in client.stream(request_id): print(event.text, end="")
        print((await client.result(request_id, timeout_s=60)).text)

What is short runs in a thread, as the synchronous client does it; tokens of all requests that
somebody waits for come by one blocking read (ingest/tokens.py).
"""

import asyncio
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Any, Self

from ingest.client import Client
from ingest.jobs.past import follow
from ingest.tokens import Entry, TokenReader, cancelled
from workers.store import Promoted
from workers.wire import EndEvent, TokenEvent


class AsyncClient:
    """Belongs to one event loop, from `async with` to its end."""

    def __init__(self, url: str | None = None, prefix: str | None = None) -> None:
        """Without arguments: the store and prefix of lockstep.toml and LOCKSTEP_* variables."""
        self.client = Client(url, prefix)
        self.reader = TokenReader(self.client.store.url, self.client.store.keys)
        self.reading: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        assert self.reading is None, "this client is open already"
        self.reading = asyncio.create_task(self.reader.run())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self.reading is not None, "this client is not open"
        await cancelled(self.reading)
        self.reading = None

    async def enqueue(self, **fields: Any) -> str:
        """As Client.enqueue, with its fields and errors."""
        return await asyncio.to_thread(self.client.enqueue, **fields)

    async def job(self, request_id: str) -> dict[str, Any] | None:
        """What is known of a request; None: nothing, also of an id that only its message holds."""
        return await asyncio.to_thread(self.client.job, request_id)

    async def result(self, request_id: str, timeout_s: float | None = None) -> EndEvent:
        """Waits for the end; its text is the whole text. timeout_s counts from the last token.

        Raises TimeoutError.
        """
        async for _ in self.stream(request_id, timeout_s=timeout_s):
            pass
        return await asyncio.to_thread(self.client.result, request_id, timeout_s)

    async def stream(
        self, request_id: str, *, after: str = "0-0", timeout_s: float | None = None
    ) -> AsyncIterator[TokenEvent | EndEvent]:
        """Tokens as they come, then the end. Raises TimeoutError when nothing comes for timeout_s.

        after  entry id behind which to begin: 0-N has token N - 1
        """
        assert self.reading is not None, "use it in `async with AsyncClient() as client`"
        batches = follow(self.client.store, self.reader, request_id, after)
        while batch := await self._next(batches, request_id, timeout_s):
            for _, event in batch:
                yield event

    async def cancel(self, request_id: str, *, unseen: bool = False) -> str:
        """As Client.cancel."""
        return await asyncio.to_thread(self.client.cancel, request_id, unseen=unseen)

    async def promote(self, request_id: str, sla: str) -> Promoted:
        """Gives a request another class, while it waits or runs. Raises ValueError for no class."""
        return await asyncio.to_thread(self.client.promote, request_id, sla)

    async def _next(
        self, batches: AsyncIterator[list[Entry]], request_id: str, timeout_s: float | None
    ) -> list[Entry]:
        """What came next; empty behind the end. Raises TimeoutError."""
        try:
            async with asyncio.timeout(timeout_s):
                async for entries in batches:
                    if entries:  # none: it has long been silent, and that is all
                        return entries
        except TimeoutError:
            raise TimeoutError(f"{request_id}: nothing for {timeout_s} s") from None
        return []
