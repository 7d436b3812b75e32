"""How much of the object store one tenant may fill, as the last sweep counted and we sent since.

The count lies in the store itself (`usage`, JSON: bytes by tenant), for all of a fleet. It is as
old as the last sweep, so that a limit is kept roughly, and what was sent stays.
"""

import json
from collections.abc import Sequence
from typing import Final

from kv_tier.remote.bucket import NotThere, StoreError
from kv_tier.remote.remote import Remote

USAGE: Final = "usage"
LOOK_MS: Final = 600_000


class OverQuota(StoreError):
    """A tenant has as much in the object store as it may."""


def refuse_over(remote: Remote, tenant: str, num_bytes: int) -> None:
    """Raises OverQuota, StoreError."""
    if not remote.tenant_bytes:
        return
    if remote.now_ms() - remote.usage_ms > LOOK_MS:
        remote.usage, remote.usage_ms = read_usage(remote), remote.now_ms()
    used = remote.usage.get(tenant, 0)
    if used + num_bytes > remote.tenant_bytes:
        raise OverQuota(f"{tenant!r} has {used} bytes of at most {remote.tenant_bytes} there")


def note_sent(remote: Remote, tenant: str, num_bytes: int) -> None:
    """Until the next sweep counts them."""
    remote.usage[tenant] = remote.usage.get(tenant, 0) + num_bytes


def write_usage(remote: Remote, kept_bytes: Sequence[tuple[str, int]]) -> None:
    """What a sweep has counted.   Raises StoreError."""
    remote.bucket.put(USAGE, [json.dumps(dict(kept_bytes)).encode()])


def read_usage(remote: Remote) -> dict[str, int]:
    """Bytes by tenant; nothing, when nobody has counted.   Raises StoreError."""
    try:
        told = json.loads(bytes(remote.bucket.get(USAGE)))
    except (NotThere, ValueError):
        return {}
    if not isinstance(told, dict):
        return {}
    return {str(name): size for name, size in told.items() if isinstance(size, int)}
