"""What things are called in the object store of a fleet (page: FORMAT.md, section 9).

    salt                                          32 bytes, the fleet's
    objects/TENANT/ab/KEY.block                   an object as on a disk, under the fleet's key
    sessions/TENANT/ID/FENCE-GENERATION.manifest  a manifest that names objects by the fleet's keys

Each node names its own files with a salt of its own. What it shares has names of the fleet's chain:
made of the same tokens, with the salt that all of the fleet read here. So nodes need not have the
same salt, and whoever may only list the store learns no more from a name than on a disk.
"""

import re
import secrets
from typing import Final

from kv_tier.chain import SALT_BYTES
from kv_tier.format import is_session_id, is_tenant
from kv_tier.manifest import Manifest
from kv_tier.names import kind_and_key
from kv_tier.remote.bucket import Bucket, IsThere, NotThere, StoreError

SALT: Final = "salt"
MANIFEST: Final = re.compile(r"sessions/([^/]+)/([^/]+)/([0-9]{20})-([0-9]{20})\.manifest")
OBJECT: Final = re.compile(r"objects/([^/]+)/[0-9a-f]{2}/([0-9a-f]{64})\.(block|tail|state)")
Version = tuple[int, int]  # fence and generation: the greater one is the later one


def salt_of(bucket: Bucket) -> bytes:
    """The fleet's; made by whichever node comes first.   Raises StoreError."""
    for _ in range(2):
        try:
            salt = bytes(bucket.get(SALT))
            if len(salt) != SALT_BYTES:
                raise StoreError(f"{SALT}: {len(salt)} bytes, not {SALT_BYTES}")
            return salt
        except NotThere:
            try:
                bucket.put(SALT, [secrets.token_bytes(SALT_BYTES)], new=True)
            except IsThere:
                continue
    raise StoreError(f"{SALT}: it is there and is not")


def object_place(tenant: str, name: bytes) -> str:
    """name: as names.name_of makes it, of the fleet's key"""
    kind, key = kind_and_key(name)
    return f"objects/{tenant}/{key.hex()[:2]}/{key.hex()}.{kind}"


def sessions_of(tenant: str, session_id: str) -> str:
    """The folder of a session's manifests."""
    assert is_tenant(tenant) and is_session_id(session_id), (tenant, session_id)
    return f"sessions/{tenant}/{session_id}"


def version_of(manifest: Manifest) -> Version:
    return manifest.fence, manifest.generation


def place_of(tenant: str, session_id: str, version: Version) -> str:
    """Of a manifest: a fence is given out once in a fleet, so that later ones are greater."""
    fence, generation = version
    return f"{sessions_of(tenant, session_id)}/{fence:020}-{generation:020}.manifest"


def version_in(place: str) -> Version | None:
    """Of a manifest's place; None: it is none."""
    named = MANIFEST.fullmatch(place)
    return (int(named[3]), int(named[4])) if named else None
