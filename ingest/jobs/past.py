"""A request's events from any moment on, also when its token stream has expired already.

Its hash is kept a little longer, and has the end.
"""

from collections.abc import AsyncIterator

from anyio.to_thread import run_sync

from ingest.tokens import Entry, TokenReader
from workers.store import Store
from workers.wire import END_ENTRY_ID, TERMINAL, EndEvent
from workers.wire_fields import end_of


async def follow(
    store: Store, reader: TokenReader, request_id: str, after: str = "0-0"
) -> AsyncIterator[list[Entry]]:
    """As TokenReader.listen; of a request whose stream has expired already, only the end."""
    end = await run_sync(end_without_stream, store, request_id)
    if end is not None:
        yield [(END_ENTRY_ID, end)]
        return
    async for entries in reader.listen(request_id, after):
        yield entries


def end_without_stream(store: Store, request_id: str) -> EndEvent | None:
    """The end, where only the job's hash has it; None: there is a stream, or no end yet."""
    if store.redis.exists(store.keys.tokens(request_id)):
        return None
    job = store.job(request_id)
    return end_of(job) if job and job["status"] in TERMINAL else None
