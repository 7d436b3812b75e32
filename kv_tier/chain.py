"""What a piece of KV is called: a keyed hash chain over the tokens that it was computed from.

    tenant's key = HMAC(salt, tenant)
    start        = HMAC(tenant's key, fingerprint)
    next         = HMAC(tenant's key, parent ++ token ids as int32)           HMAC-SHA256, 32 bytes

    start ──256 tokens──► key of block 0 ──256──► key of block 1 ──n < 256──► key of a tail, a state

So two sequences that begin alike share the names, and the files, of what they have in common; two
tenants never do, nor do two models, two arithmetics or two shapes. Who does not know the salt can
neither guess a name nor tell from one what was said.
"""

import hashlib
import hmac
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from kv_tier.files import OsFiles, locked
from kv_tier.format import (
    BLOCK_TOKENS as BLOCK_TOKENS,
)  # the chain's step; others know it from here
from kv_tier.format import KEY_BYTES, CorruptFile, is_tenant, token_bytes

SALT_BYTES: Final = 32


class Chain:
    """The names of one tenant's KV, made with one model and one arithmetic.

    start  the key before the first token
    """

    def __init__(self, salt: bytes, tenant: str, fingerprint: bytes) -> None:
        assert len(salt) == SALT_BYTES and len(fingerprint) == KEY_BYTES, (salt, fingerprint)
        assert is_tenant(tenant), tenant
        self.tenant = tenant
        self.fingerprint = fingerprint
        self._secret = hmac.digest(salt, tenant.encode(), "sha256")
        self.start = hmac.digest(self._secret, fingerprint, "sha256")

    def next(self, parent: bytes, token_ids: Sequence[int]) -> bytes:
        """The key after these tokens, which follow what `parent` names: 1 to 256 of them."""
        assert len(parent) == KEY_BYTES and 1 <= len(token_ids) <= BLOCK_TOKENS, len(token_ids)
        return hmac.digest(self._secret, parent + token_bytes(token_ids), "sha256")

    def block_keys(self, token_ids: Sequence[int]) -> list[bytes]:
        """The key of each full block of these tokens, which begin at position 0."""
        keys: list[bytes] = []
        key = self.start
        for end in range(BLOCK_TOKENS, len(token_ids) + 1, BLOCK_TOKENS):
            key = self.next(key, token_ids[end - BLOCK_TOKENS : end])
            keys.append(key)
        return keys

    def key_at(self, token_ids: Sequence[int], position: int) -> bytes:
        """The key after the first `position` tokens; where a block ends it is the block's."""
        assert 0 <= position <= len(token_ids), (position, len(token_ids))
        full = position - position % BLOCK_TOKENS
        keys = self.block_keys(token_ids[:full])
        key = keys[-1] if keys else self.start
        return self.next(key, token_ids[full:position]) if full < position else key


def fingerprint_of(
    weights_digest: str, arithmetic_version: str | int, *shapes: Sequence[int]
) -> bytes:
    """32 bytes that differ wherever KV or state of the same tokens may differ.

    shapes  of one block of KV and of one slot of each state array, in a fixed order
    """
    lines = [weights_digest, str(arithmetic_version)]
    lines += [" ".join(str(int(size)) for size in shape) for shape in shapes]
    assert not any("\n" in line for line in lines), lines
    return hashlib.sha256("\n".join(lines).encode()).digest()


def read_salt(root: Path, files: OsFiles | None = None) -> bytes:
    """The 32 secret bytes of root/salt; made at first use, durable before they are used.

    A lost salt costs all KV (nothing is found any more), never a wrong answer. Raises DiskFull,
    DiskError, CorruptFile.
    """
    files = files or OsFiles()
    path = root / "salt"
    if not path.exists():
        files.make_folders(root)
        with locked(root):
            if not path.exists():
                files.write_file(path, SALT_BYTES, [(0, secrets.token_bytes(SALT_BYTES))])
                files.sync_folder(root)
    salt = files.perform(path, path.read_bytes)
    if len(salt) != SALT_BYTES:
        raise CorruptFile(
            path, f"{len(salt)} bytes, not {SALT_BYTES}; without it, a new one is made"
        )
    return salt


def common_length(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens at the beginning of both are the same."""
    most = min(len(one), len(other))
    if one[:most] == other[:most]:
        return most
    return next((index for index in range(most) if one[index] != other[index]), most)
