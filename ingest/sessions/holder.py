"""Who keeps a session from being deleted, and what the API and the command say of one."""

from collections.abc import Mapping
from typing import Any, Protocol

from workers.wire import split_id


class Row(Protocol):
    """A row of the ledger's listing."""

    @property
    def tenant(self) -> str: ...
    @property
    def session_id(self) -> str: ...
    @property
    def model(self) -> str: ...
    @property
    def num_tokens(self) -> int: ...
    @property
    def num_kv(self) -> int: ...
    @property
    def bytes(self) -> int: ...
    @property
    def num_checkpoints(self) -> int: ...
    @property
    def pinned(self) -> bool: ...
    @property
    def created_ms(self) -> int: ...
    @property
    def used_ms(self) -> int: ...


def held(known: Mapping[str, Any]) -> str | None:
    """What goes on in a session of which the store knows this, in words; None: nothing."""
    waiting = known.get("waiting", 0)
    if holder := known.get("holder"):
        more = f" and {waiting} more wait" if waiting else ""
        return f"request {split_id(holder)[1]!r} is not over{more}"
    return f"{waiting} requests of it wait" if waiting else None


def session_object(row: Row) -> dict[str, Any]:
    """A session in a listing.

    kv_bytes  on the disk, of its manifests and of all objects it names, shared ones included
    """
    return {
        "id": row.session_id,
        "object": "session",
        "tenant": row.tenant,
        "model": row.model,
        "tokens": row.num_tokens,
        "kv_tokens": row.num_kv,
        "kv_bytes": row.bytes,
        "checkpoints": row.num_checkpoints,
        "pinned": row.pinned,
        "created_ms": row.created_ms,
        "used_ms": row.used_ms,
    }
