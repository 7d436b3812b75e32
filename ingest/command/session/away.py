"""`lockstep session push` and `pull`: to the object store of the fleet, and from it.

Sessions that rest are sent by themselves, and one that is asked for is fetched by itself: these are
for a node that is to be taken away, and for people who want to see it happen.
"""

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from ingest.command.failure import FAILED, USAGE, Failure
from ingest.command.session.carry import needed
from ingest.command.session.known import known_of
from ingest.command.session.opened import AsJson, Id, Tenant, bar, mib, opened
from ingest.sessions.holder import held
from workers.settings import settings
from workers.wire import DEFAULT_TENANT, full_id

if TYPE_CHECKING:
    from kv_tier.manifest import Manifest
    from kv_tier.remote.push import Pushed
    from kv_tier.remote.remote import Remote


@dataclass(frozen=True, slots=True)
class Failed:
    """One of many that was not sent, and why."""

    session_id: str
    reason: str


def push_command(
    session_id: Annotated[
        str | None, typer.Argument(metavar="[ID]", help="The session's id.", show_default=False)
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Every session of every tenant.")] = False,
    tenant: Tenant = DEFAULT_TENANT,
    as_json: AsJson = False,
) -> None:
    """Send to the object store what it does not have of a session, or of all."""
    if (session_id is None) != every:
        raise Failure("name a session, or give --all", USAGE)
    with store() as remote:
        ids = [(tenant, session_id or "")] if session_id else list(remote.tier.sessions.ids())
        done = list(pushed(remote, ids))
    say_pushed(done, as_json)
    if any(isinstance(one, Failed) for one in done):
        raise typer.Exit(FAILED)


def pushed(remote: "Remote", ids: list[tuple[str, str]]) -> Iterator["Pushed | Failed"]:
    """One after the other; one that fails stops no other."""
    from kv_tier.files import DiskError
    from kv_tier.fork import NoSession
    from kv_tier.format import CorruptFile
    from kv_tier.remote.bucket import StoreError
    from kv_tier.remote.push import Superseded, push

    with bar() as shown:
        for number, (tenant, session_id) in enumerate(ids):
            shown(session_id, number, len(ids))
            try:
                yield push(remote, tenant, session_id, trusts=False)
            except Superseded:
                yield Failed(session_id, "it was changed meanwhile: push it again")
            except (NoSession, StoreError, DiskError, CorruptFile) as error:
                yield Failed(session_id, str(error))


def say_pushed(done: "list[Pushed | Failed]", as_json: bool) -> None:
    failed = [one for one in done if isinstance(one, Failed)]
    there = [one for one in done if not isinstance(one, Failed)]
    num_bytes = sum(one.num_bytes for one in there)
    told = {
        "sessions": len(there),
        "sent": sum(one.sent for one in there),
        "known": sum(one.known for one in there),
        "left": sum(one.left for one in there),
        "bytes": num_bytes,
        "failed": {one.session_id: one.reason for one in failed},
    }
    if as_json:
        print(json.dumps(told))
        return
    for one in failed:
        print(f"{one.session_id}: {one.reason}")
    counts = f"{told['sent']} objects sent, {told['known']} were there"
    left = f", {told['left']} are not here" if told["left"] else ""
    print(f"{len(there)} sessions are in the object store: {counts}{left}; {mib(num_bytes)}")


def pull_command(session_id: Id, tenant: Tenant = DEFAULT_TENANT, as_json: AsJson = False) -> None:
    """Bring a session from the object store, or its log from Redis, as it was committed last."""
    node = needed()
    with store() as remote:
        from kv_tier.remote.pull import pull

        remote.tier.sessions.folder(tenant, session_id)
        known = known_of(tenant, session_id)
        if (reason := held(known)) is not None:
            raise Failure(f"session {session_id!r} is in use: {reason}; that brings it by itself")
        found = found_of(remote, tenant, session_id, known)
        come = pull(remote, found, node.sizes)
        if found != remote.tier.sessions.head(tenant, session_id):
            install(remote, found, known)
    told = {
        "id": session_id,
        "tokens": len(found.token_ids),
        "kv_tokens": found.num_kv,
        "objects": come.fetched,
        "left": come.left,
        "bytes": come.num_bytes,
    }
    left = f"; {come.left} are not there and will be computed again" if come.left else ""
    kept = f"{told['tokens']} tokens, {come.fetched} objects of KV, {mib(come.num_bytes)}"
    print(json.dumps(told) if as_json else f"session {session_id!r} is here: {kept}{left}")


def found_of(
    remote: "Remote", tenant: str, session_id: str, known: dict[str, object]
) -> "Manifest":
    """The newest there is, wherever it is. Raises Failure, and redis' errors."""
    from kv_tier.remote.pull import newest
    from workers.session.recall import chosen, is_current, logged_of, without_void
    from workers.store import Store

    own = without_void(remote.tier.sessions.head(tenant, session_id), known)
    if own is not None and is_current(own, known):
        return own
    stored = without_void(newest(remote, tenant, session_id), known)
    logged = logged_of(Store.of(settings()), tenant, session_id)
    found = chosen(own, stored, logged, known)
    if found is None:
        raise Failure(f"nobody has session {session_id!r} as it was committed last")
    return found


def install(remote: "Remote", found: "Manifest", known: dict[str, object]) -> None:
    """It is in this node's files from now on. Raises Failure, when a request was faster."""
    from dataclasses import replace

    from workers.store import Store

    tenant, session_id = found.tenant, found.session_id
    least = max(found.fence, int(str(known.get("fence", 0)))) + 1
    fence = remote.tier.sessions.take(tenant, session_id, least)
    head = remote.tier.sessions.head(tenant, session_id)
    generation = max(found.generation, head.generation if head else 0) + 1
    if not Store.of(settings()).session_note(full_id(tenant, session_id), fence=fence):
        raise Failure(f"session {session_id!r} is in use: that brings it by itself")
    remote.tier.commit(replace(found, fence=fence, generation=generation))


@contextmanager
def store() -> "Iterator[Remote]":
    """The object store behind this node's sessions. Raises Failure."""
    from kv_tier.remote.bucket import StoreError
    from workers.session.files import open_remote

    with opened() as tier:
        try:
            remote = open_remote(settings(), tier)
            if remote is None:
                what = "an object store, such as s3://bucket/prefix or file:///mnt/shared"
                raise Failure(f"LOCKSTEP_KV_STORE_URL is not set: it names {what}", USAGE)
            with closing(remote):
                yield remote
        except StoreError as error:
            raise Failure(f"the object store: {error}") from None
