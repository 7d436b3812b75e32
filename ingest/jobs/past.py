"""A request's events from any moment on, also when its token stream has expired already.

Its hash is kept a little longer, and has the end. A store that fails over may lose what it had
accepted (docs/redis.md): then nothing would come for ever, so whoever listens in vain looks whether
there still is such a request.
"""

from collections.abc import AsyncIterator
from typing import Final

from anyio.to_thread import run_sync
from redis.exceptions import RedisError

from ingest.tokens import Entry, TokenReader
from workers.store import Store
from workers.wire import END_ENTRY_ID, TERMINAL, EndEvent
from workers.wire_fields import end_of

LOST: Final = EndEvent(
    status="failed", code="lost", error="the store has lost this request; ask again"
)


async def follow(
    store: Store, reader: TokenReader, request_id: str, after: str = "0-0"
) -> AsyncIterator[list[Entry]]:
    """As TokenReader.listen; of a request whose stream has expired already, only the end."""
    end = await run_sync(end_without_stream, store, request_id)
    if end is not None:
        yield [(END_ENTRY_ID, end)]
        return
    if await run_sync(is_gone, store, request_id):  # no router has read it yet
        events = reader.listen(request_id, after)
    else:
        events = heard(store, reader, request_id, after)
    async for entries in events:
        yield entries


async def heard(
    store: Store, reader: TokenReader, request_id: str, after: str = "0-0"
) -> AsyncIterator[list[Entry]]:
    """As TokenReader.listen, of a request with a record: it ends when that is gone, too."""
    async for entries in reader.listen(request_id, after):
        if not entries and await run_sync(is_gone, store, request_id):
            yield [(END_ENTRY_ID, LOST)]
            return
        yield entries


def is_gone(store: Store, request_id: str) -> bool:
    """Whether there is no record of it; a store that is away does not say so."""
    try:
        return not store.redis.exists(store.keys.job(request_id))
    except RedisError:
        return False


def end_without_stream(store: Store, request_id: str) -> EndEvent | None:
    """The end, where only the job's hash has it; None: there is a stream, or no end yet."""
    if store.redis.exists(store.keys.tokens(request_id)):
        return None
    job = store.job(request_id)
    return end_of(job) if job and job["status"] in TERMINAL else None
