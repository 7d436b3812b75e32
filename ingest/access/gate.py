"""Who may come in: each route says with needs(SCOPE) what it asks of a key.

    routes = APIRouter(dependencies=[needs("jobs")])      then request.state.key is the Key

    LOCKSTEP_OPEN=1                  nobody needs a key; one that is known counts
    LOCKSTEP_HOST is loopback        the same, until there is a key
    else                             401 without a key, 403 without the scope; the door does not
                                     open before there is a key

What needs none on loopback is for this machine's own programs: a page of the web that reaches us
through its reader's browser (DNS rebinding, a form) is told by its Host and Origin, and refused.
"""

import asyncio
import time
from collections.abc import Mapping
from ipaddress import ip_address
from typing import Any, Final
from urllib.parse import urlsplit

from anyio.to_thread import run_sync
from fastapi import Depends, Request
from redis.exceptions import RedisError

from ingest.access.keys import ANYBODY, Key, hash_of, read_keys
from ingest.errors import ApiError
from workers.clock import now_ms
from workers.settings import Settings
from workers.store import Store

STORE_WAIT_S: Final = 0.5  # between two looks for a store that is away
KEYS_AGE_S: Final = 1.0  # a key that was removed opens nothing after so long


def needs(scope: str) -> Any:
    """The dependency of a route, or of all routes of a router, that asks for a scope."""

    async def check(request: Request) -> None:
        gate: Gate = request.app.state.desk.gate
        request.state.key = await gate.enter(request.headers, scope)

    check.scope = scope  # type: ignore[attr-defined]  # read by the test of all routes
    return Depends(check)


def key_of(request: Request) -> Key:
    """Who asks. Of a route that needs a scope."""
    key: Key = request.state.key
    return key


class Gate:
    """One for the process. Knows the store's keys, KEYS_AGE_S old at most while it answers.

    by_hash  keys by the hash of what opens them; None: the store has never answered
    """

    def __init__(self, settings: Settings, store: Store) -> None:
        self.store = store
        self.is_open = settings.open
        self.is_local = is_loopback(settings.host)
        self.by_hash: dict[str, Key] | None = None
        self.read_at = float("-inf")
        self._reading: asyncio.Task[None] | None = None

    async def enter(self, headers: Mapping[str, str], scope: str) -> Key:
        """The key that asks for a scope. Raises ApiError 401 or 403, or redis' errors."""
        try:
            await self.refresh()
        except (RedisError, OSError):
            if self.by_hash is None:
                if scope == "metrics" and (self.is_local or self.is_open):
                    return ANYBODY  # nobody has been let in yet: they tell of nobody
                raise
            self.read_at = time.monotonic()  # those of the last look count until it answers
        key = self.identify(headers)
        if not key.may(scope):
            reason = f"this key may not do that: it needs the scope {scope!r}"
            raise ApiError(403, reason, code="insufficient_scope")
        return key

    async def named(self, name: str, tenant: str) -> Key:
        """The key of that name, for what goes on in its name; one without limits if it is gone.

        Raises redis' errors.
        """
        await self.refresh()
        known = {key.id: key for key in (self.by_hash or {}).values() if key.tenant == tenant}
        return known.get(name) or Key(id=name, tenant=tenant)

    def identify(self, headers: Mapping[str, str]) -> Key:
        """Whose secret is in the headers. Raises ApiError."""
        assert self.by_hash is not None
        secret = secret_of(headers)
        told = hash_of(secret) if secret else ""
        key, at_ms = self.by_hash.get(told), now_ms()
        if key is not None and key.opens(told, at_ms):
            return key
        if self.is_open:
            return ANYBODY
        if self.is_local and not self.by_hash:
            refuse_strangers(headers)
            return ANYBODY
        if secret is None:
            raise ApiError(
                401, "an API key is needed: Authorization: Bearer lsk-...", code="no_api_key"
            )
        if key is not None and key.is_expired(at_ms):
            raise ApiError(401, "this API key has expired", code="expired_api_key")
        raise ApiError(401, "this API key is not known here", code="invalid_api_key")

    async def refresh(self) -> None:
        """Reads the keys when the last look is too old; who comes meanwhile waits for the same.

        Raises redis' errors.
        """
        if time.monotonic() - self.read_at < KEYS_AGE_S:
            return
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read())
        await asyncio.shield(self._reading)

    async def _read(self) -> None:
        found = await run_sync(read_keys, self.store)
        hashes = ((h, key) for key in found.values() for h in (key.secret_hash, key.old_hash))
        self.by_hash = {h: key for h, key in hashes if h}
        self.read_at = time.monotonic()


def why_shut(settings: Settings, store: Store) -> str | None:
    """Why a door on this address must not open; None: it may. Waits for the store's answer."""
    if settings.open or is_loopback(settings.host):
        return None
    while True:
        try:
            if read_keys(store):
                return None
            return (
                f"others can reach {settings.host}, and there is no API key: "
                "run `lockstep key add NAME`, or set LOCKSTEP_OPEN=1"
            )
        except (RedisError, OSError):
            time.sleep(STORE_WAIT_S)


def secret_of(headers: Mapping[str, str]) -> str | None:
    """What the client sent as its key, as OpenAI's clients or as Anthropic's do; None: nothing."""
    kind, _, secret = headers.get("authorization", "").partition(" ")
    if kind.lower() == "bearer" and secret.strip():
        return secret.strip()
    return headers.get("x-api-key") or None


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server on this address."""
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() in ("localhost", "ip6-localhost", "ip6-loopback")


def refuse_strangers(headers: Mapping[str, str]) -> None:
    """Raises ApiError 403 for what a browser sends on behalf of a page that is not ours."""
    places = (f"//{headers.get('host', '')}", headers.get("origin", "//localhost"))
    try:
        is_ours = all(is_loopback(urlsplit(place).hostname or "") for place in places)
    except ValueError:
        is_ours = False
    if not is_ours:
        reason = "without API keys only programs of this machine may ask, by a loopback address"
        raise ApiError(403, f"{reason}: lockstep key add makes one", code="foreign_origin")
