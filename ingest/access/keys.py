"""API keys: who asks, on whose account, for what, and how much of it.

    lockstep:keys      hash: a key's name -> Key as JSON; every node of a fleet knows them
    lsk-SECRET         what its owner sends; of it only the SHA-256 is kept

A secret is 32 random bytes, so nothing can be guessed that a slow hash would protect. A rotated key
keeps its name, tenant and limits: it has a new secret, and for a while the old one, too.
"""

import hashlib
import re
import secrets
from typing import Any, Final, cast

import msgspec

from workers.store import Store
from workers.wire import DEFAULT_TENANT, full_id

PREFIX: Final = "lsk-"  # by which secret scanners, and our own log, find one
SCOPES: Final = ("infer", "jobs", "sessions", "metrics", "admin")
GIVEN: Final = ("infer", "jobs", "sessions")  # to a key of which nothing else is said
NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
TENANT: Final = re.compile(r"[a-z0-9]{1,32}")


class BadKey(ValueError):
    """It cannot be added or changed; the message says why."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What a key may ask for; 0: any number.

    tokens_per_min  prompt and output together
    concurrent      requests that were taken and have not ended
    """

    requests_per_min: int = 0
    tokens_per_min: int = 0
    concurrent: int = 0

    @property
    def as_tuple(self) -> tuple[int, int, int]:
        return self.requests_per_min, self.tokens_per_min, self.concurrent


class Key(msgspec.Struct, frozen=True, kw_only=True):
    """One key. id: its name; "": nobody asked for one.

    secret_hash, old_hash  hex SHA-256 of what its owner sends; "": none
    expires_ms             Unix time after which it is no key any more; None: never
    old_until_ms           Unix time up to which the secret before the last rotation counts
    """

    id: str
    tenant: str = DEFAULT_TENANT
    scopes: tuple[str, ...] = GIVEN
    limits: Limits = Limits()
    secret_hash: str = ""
    created_ms: int = 0
    expires_ms: int | None = None
    old_hash: str = ""
    old_until_ms: int = 0

    def may(self, scope: str) -> bool:
        """Whether it was given this scope; admin has all."""
        return scope in self.scopes or "admin" in self.scopes

    def full_id(self, own_id: str) -> str | None:
        """As keys in Redis have it, of what its tenant calls a request; None: that is no id.

        So nobody reaches what is another tenant's, whatever the id says.
        """
        is_id = NAME.fullmatch(own_id) is not None and "--" not in own_id
        return full_id(self.tenant, own_id) if is_id else None

    def is_expired(self, now_ms: int) -> bool:
        return self.expires_ms is not None and now_ms >= self.expires_ms

    def opens(self, secret_hash: str, now_ms: int) -> bool:
        """Whether a secret with this hash is its own now; an expired key opens nothing."""
        is_old = secret_hash == self.old_hash and now_ms < self.old_until_ms
        return (secret_hash == self.secret_hash or is_old) and not self.is_expired(now_ms)


ANYBODY: Final = Key(id="", scopes=SCOPES)


def hash_of(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()


def new_secret() -> str:
    """32 random bytes, in letters that every header and shell takes."""
    return PREFIX + secrets.token_urlsafe(32)


def read_keys(store: Store) -> dict[str, Key]:
    """All keys by name. Raises redis errors; what is no key of ours is passed over."""
    raw = cast(dict[bytes, bytes], store.redis.hgetall(store.keys.api_keys))
    found = [key for key in map(_parsed, raw.values()) if key is not None]
    return {key.id: key for key in sorted(found, key=lambda key: key.id)}


def _parsed(raw: bytes) -> Key | None:
    try:
        return msgspec.json.decode(raw, type=Key)
    except msgspec.DecodeError:
        return None


def add_key(store: Store, key: Key) -> str:
    """Takes a new key in, and gives its secret: nobody can read it again. Raises BadKey."""
    _check(key)
    secret = new_secret()
    kept = msgspec.structs.replace(key, secret_hash=hash_of(secret))
    if not store.redis.hsetnx(store.keys.api_keys, key.id, _json(kept)):
        raise BadKey(f"there is a key {key.id!r} already: rotate or remove it")
    return secret


def rotate_key(store: Store, name: str, *, now_ms: int, overlap_s: int) -> str:
    """Gives a key's new secret; the one before it counts for overlap_s more. Raises BadKey."""
    key = known_key(store, name)
    secret = new_secret()
    old = {"old_hash": key.secret_hash, "old_until_ms": now_ms + overlap_s * 1000}
    kept = msgspec.structs.replace(key, secret_hash=hash_of(secret), **cast(Any, old))
    store.redis.hset(store.keys.api_keys, name, _json(kept))
    return secret


def remove_key(store: Store, name: str) -> None:
    """It opens nothing from now on; what it asked for goes on. Raises BadKey."""
    if not store.redis.hdel(store.keys.api_keys, name):
        raise BadKey(f"there is no key {name!r}")


def known_key(store: Store, name: str) -> Key:
    """Raises BadKey."""
    key = read_keys(store).get(name)
    if key is None:
        raise BadKey(f"there is no key {name!r}")
    return key


def _check(key: Key) -> None:
    if not NAME.fullmatch(key.id):
        raise BadKey(f"name: must be 1 to 64 letters, digits, - and _, got {key.id[:80]!r}")
    if not TENANT.fullmatch(key.tenant):
        raise BadKey(f"tenant: must be 1 to 32 of a-z and 0-9, got {key.tenant[:80]!r}")
    unknown = [scope for scope in key.scopes if scope not in SCOPES]
    if unknown or not key.scopes:
        raise BadKey(f"scope: must be of {', '.join(SCOPES)}, got {', '.join(unknown) or 'none'}")
    if min(key.limits.as_tuple) < 0:
        raise BadKey("limits: must not be negative; 0 is none")


def _json(key: Key) -> bytes:
    return msgspec.json.encode(key)
