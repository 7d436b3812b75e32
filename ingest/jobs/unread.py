"""A job before it has a hash: what a plain XADD has put on a stream and no router has read yet.

Its sender knows it by the name that it will have, CLASS-<entry id>, unless the message brings an id
of its own: by that nobody finds it before it is read.
"""

from collections.abc import Mapping
from typing import Any, cast

import msgspec
from redis.exceptions import ResponseError

from workers.store import Store
from workers.wire import DEFAULT_TENANT, split_id


def known(store: Store, request_id: str) -> dict[str, Any] | None:
    """As Store.job, and what is still in a stream, as queued."""
    return store.job(request_id) or unread(store, request_id) or store.job(request_id)


def unread(store: Store, request_id: str) -> dict[str, Any] | None:
    """What lies in a stream under this name, as a queued job; None: nothing."""
    tenant, own_id = split_id(request_id)
    sla, *numbers = own_id.rsplit("-", 2)
    if len(numbers) != 2 or not all(part.isascii() and part.isdigit() for part in numbers):
        return None
    entry_id = "-".join(numbers)
    try:
        found = store.redis.xrange(store.keys.requests(sla), entry_id, entry_id, count=1)
    except ResponseError:  # larger than any entry's
        return None
    entries = cast(list[tuple[bytes, dict[bytes, bytes]]], found)
    if not entries or names_of(entries[0][1]) != (None, tenant):
        return None
    told = {"status": "queued", "sla": sla, "tenant": tenant, "entry": entry_id}
    return {"id": request_id, **told, "arrival_ms": int(numbers[0])}


def names_of(entry: Mapping[bytes, bytes]) -> tuple[Any, Any]:
    """(id, tenant) that a message says; None: no id."""
    fields: Any = {key.decode("utf-8", "replace"): text(value) for key, value in entry.items()}
    if b"m" in entry:
        try:
            fields = msgspec.msgpack.decode(entry[b"m"])
        except (msgspec.MsgspecError, ValueError):
            fields = None
    if not isinstance(fields, dict):  # a router will refuse it, under the name of its entry
        fields = {}
    tenant = fields.get("tenant")
    return fields.get("id"), DEFAULT_TENANT if tenant is None else tenant


def text(value: bytes) -> str:
    return value.decode("utf-8", "replace")
