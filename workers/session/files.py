"""The one place where the door, the router and the pools get at the files of sessions."""

import os
import resource
from contextlib import closing
from pathlib import Path
from typing import Final

from kv_tier.budget import TierLimits
from kv_tier.files import DiskError
from kv_tier.remote.bucket import Bucket, NoStore, StoreError
from kv_tier.remote.remote import Remote
from kv_tier.remote.sweep import forget
from kv_tier.tier import KvTier as KvTier
from workers.log import logger
from workers.settings import Settings

log = logger("kv")  # also sends the tier's own lines to stderr, whoever opens it
FREE_SHARE: Final = 20  # a twentieth of the disk stays free, so that the store can always write
FREE_BYTES: Final = 2 << 30  # and so many bytes at least, when nothing is said
KV_SHARE: Final = 2  # half of the disk at most, when nothing is said
DESCRIPTORS: Final = 1 << 16  # a long session is many files, open until the engine has mapped them


def open_tier(settings: Settings) -> KvTier:
    """The KV tier of this node, and descriptors enough for it.   Raises DiskFull, DiskError."""
    allow_many_files()
    root = kv_root(settings)
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    return KvTier(root, limits_of(settings, root))


def open_remote(settings: Settings, tier: KvTier) -> Remote | None:
    """The object store behind a tier; None: none is set.   Raises NoStore, DiskFull, DiskError."""
    if not settings.kv_store_url:
        return None
    return Remote(
        Bucket(settings.kv_store_url),
        tier,
        bytes_per_s=settings.kv_store_mib_per_s * (1 << 20),
        tenant_bytes=settings.kv_store_tenant_mib << 20,
    )


def find_remote(settings: Settings, tier: KvTier) -> Remote | None:
    """The same, for who can do without: what is wrong is logged."""
    try:
        return open_remote(settings, tier)
    except (NoStore, DiskError) as error:
        log.error("no object store: sessions stay on this disk", reason=str(error))
        return None


def forget_stored(settings: Settings, tier: KvTier, tenant: str, session_id: str) -> str:
    """A session that was deleted goes from the object store; "", or why not before its sweep."""
    try:
        remote = open_remote(settings, tier)
        if remote is not None:
            with closing(remote):
                forget(remote, tenant, session_id)
    except (StoreError, DiskError) as error:
        log.warning("a deleted session stays in the object store", reason=str(error))
        return str(error)
    return ""


def kv_root(settings: Settings) -> Path:
    """Where sessions and their KV lie."""
    return settings.home / "kv"


def limits_of(settings: Settings, root: Path) -> TierLimits:
    """What settings and the disk under `root` allow."""
    disk = os.statvfs(root)
    disk_bytes = disk.f_blocks * disk.f_frsize
    kept_free = max(disk_bytes // FREE_SHARE, FREE_BYTES)
    return TierLimits(
        quota_bytes=settings.kv_disk_mib << 20 or disk_bytes // KV_SHARE,
        tenant_bytes=settings.kv_tenant_mib << 20,
        keep_free_bytes=settings.kv_keep_free_mib << 20 or kept_free,
        ttl_ms=settings.session_ttl_s * 1000,
    )


def allow_many_files() -> None:
    """Raise this process's own limit of open files, as far as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError) as error:
            log.debug("the limit of open files stays", limit=soft, error=str(error))
