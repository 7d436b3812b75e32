"""The one place where the door, the router and the pools get at the files of sessions."""

from pathlib import Path

from kv_tier.tier import KvTier, TierLimits
from workers.settings import Settings


def open_tier(settings: Settings) -> KvTier:
    """The KV tier of this node.   Raises DiskFull, DiskError."""
    return KvTier(kv_root(settings), TierLimits())


def kv_root(settings: Settings) -> Path:
    """Where sessions and their KV lie."""
    return settings.home / "kv"
