"""A session without its files: what its last commit says but for the KV, small enough for Redis.

Its next owner, on another node, computes the same KV again. The bytes are those of a manifest
(kv_tier/FORMAT.md, section 3), so that they are checked as a file is, compressed by zlib.
"""

import zlib
from dataclasses import replace
from pathlib import Path
from typing import Final

from kv_tier.format import CorruptFile
from kv_tier.manifest import Manifest, decode_manifest, encode_manifest

LOG_BYTES_MAX: Final = 1 << 20  # compressed; some 300,000 tokens and what they say
PLAIN_BYTES_MAX: Final = 64 << 20
LEVEL: Final = 1  # of compression: a turn's end waits for it


def packed(manifest: Manifest) -> bytes:
    """b"" when it is too large: such a session outlives its node in the object store alone."""
    log = replace(manifest, num_kv=0, blocks=(), tail=None, checkpoints=())
    data = zlib.compress(encode_manifest(log), LEVEL)
    return data if len(data) <= LOG_BYTES_MAX else b""


def unpacked(data: bytes, tenant: str, session_id: str) -> Manifest:
    """Raises CorruptFile, also for that of another session."""
    path = Path(f"{tenant}/{session_id} in Redis")
    try:
        plain = zlib.decompressobj()
        manifest = decode_manifest(plain.decompress(data, PLAIN_BYTES_MAX), path)
    except zlib.error as error:
        raise CorruptFile(path, str(error)) from error
    if (manifest.tenant, manifest.session_id) != (tenant, session_id):
        raise CorruptFile(path, f"it is of {manifest.tenant}/{manifest.session_id}")
    return manifest
