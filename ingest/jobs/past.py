"""The end of a request whose token stream has expired already: its hash is kept a little longer."""

from workers.store import Store
from workers.wire import TERMINAL, EndEvent
from workers.wire_fields import end_of


def end_without_stream(store: Store, request_id: str) -> EndEvent | None:
    """The end, where only the job's hash has it; None: there is a stream, or no end yet."""
    if store.redis.exists(store.keys.tokens(request_id)):
        return None
    job = store.job(request_id)
    return end_of(job) if job and job["status"] in TERMINAL else None
