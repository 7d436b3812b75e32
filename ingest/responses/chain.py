"""What a response follows: the messages before it, and the session that keeps them computed.

The messages are those of the kept responses; the session is a cache of their tokens and KV. The
first that follows a response goes on with its session. Another one that follows the same response
is a branch: it begins a session of its own, and finds the beginning that it shares computed.
"""

from dataclasses import dataclass, field

from ingest.errors import refused
from ingest.responses.items import messages_of
from ingest.responses.kept import Kept, Shelf
from ingest.shapes import Json

FIELD = "previous_response_id"
UNDER_WAY = ("queued", "in_progress")


@dataclass
class Chain:
    """ids: of the responses before, the first one first. last: the one that is followed."""

    ids: list[str] = field(default_factory=list)
    messages: list[Json] = field(default_factory=list)
    last: Kept | None = None


def chain_of(shelf: Shelf, last: Kept) -> Chain:
    """All that came before. Raises ApiError when some of it is gone, or not there yet."""
    if last.response["status"] in UNDER_WAY:
        raise refused(FIELD, f"{last.id} has not ended yet", "response_not_ended")
    before = shelf.read(last.before)
    missing = [i for i, kept in zip(last.before, before, strict=True) if kept is None]
    if missing:
        raise not_found(missing[0])
    whole = [*(kept for kept in before if kept is not None), last]
    items = [item for kept in whole for item in kept.items]
    return Chain([*last.before, last.id], messages_of(items), last)


def session_for(shelf: Shelf, chain: Chain, own_id: str) -> str:
    """The session's name: that of the conversation so far, or one of its own."""
    last = chain.last
    if last is not None and last.session_id and shelf.follows(last.id, own_id):
        return last.session_id
    return own_id


def not_found(response_id: str) -> Exception:
    reason = f"there is no response {response_id[:80]!r}"
    return refused(FIELD, reason, "previous_response_not_found")
