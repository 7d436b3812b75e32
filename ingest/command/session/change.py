"""`lockstep session fork`, `pin`, `unpin`, `rm`, `gc`: what makes sessions, and ends them."""

import json
from dataclasses import asdict
from functools import partial
from typing import Annotated

import typer

from ingest.command.failure import USAGE, Failure
from ingest.command.session.known import announce, forget, forget_old, known_of, new_fence
from ingest.command.session.opened import AsJson, Id, Tenant, head, mib, opened
from ingest.sessions.holder import held
from kv_tier.tier import KvTier, wall_ms
from workers.wire import DEFAULT_TENANT


def fork_command(
    source: Annotated[str, typer.Argument(metavar="ID", show_default=False)],
    target: Annotated[str, typer.Argument(metavar="NEW_ID", show_default=False)],
    position: Annotated[
        int | None, typer.Option("--at", min=0, help="Tokens that it keeps. Absent: all.")
    ] = None,
    tenant: Tenant = DEFAULT_TENANT,
    as_json: AsJson = False,
) -> None:
    """A new session that begins as another did. No KV is copied."""
    from kv_tier.fork import SessionExists

    with opened() as tier:
        num_tokens = len(head(tier, tenant, source).token_ids)
        if position is not None and position > num_tokens:
            raise Failure(
                f"--at: session {source!r} has {num_tokens} tokens, got {position}", USAGE
            )
        fence = new_fence(tenant, target)
        try:
            new = tier.fork(tenant, source, target, position, fence=fence)
        except SessionExists as error:
            raise Failure(f"{error}: choose another id, or rm it first") from None
        announce(new)
    told = {"id": target, "forked_from": source, "tokens": len(new.token_ids), "kv": new.num_kv}
    kept = f"{told['tokens']} tokens, {told['kv']} of them with KV"
    print(json.dumps(told) if as_json else f"session {target!r} is here: {kept}")


def pin_command(session_id: Id, tenant: Tenant = DEFAULT_TENANT, as_json: AsJson = False) -> None:
    """Keep it, however full the disk is and however long nobody uses it."""
    set_pin(tenant, session_id, True, as_json)


def unpin_command(session_id: Id, tenant: Tenant = DEFAULT_TENANT, as_json: AsJson = False) -> None:
    """Let it go when room is wanted, as any other."""
    set_pin(tenant, session_id, False, as_json)


def set_pin(tenant: str, session_id: str, pinned: bool, as_json: bool) -> None:
    with opened() as tier:
        head(tier, tenant, session_id)
        tier.pin(tenant, session_id, pinned)
    word = "pinned" if pinned else "not pinned"
    told = {"id": session_id, "pinned": pinned}
    print(json.dumps(told) if as_json else f"session {session_id!r} is {word}")


def rm_command(
    session_id: Id,
    tenant: Tenant = DEFAULT_TENANT,
    force: Annotated[
        bool, typer.Option("--force", help="Also while a request of it waits or runs.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Forget a session: its log, and its KV but what other sessions share."""
    with opened() as tier:
        tier.sessions.folder(tenant, session_id)
        known = known_of(tenant, session_id)
        if not force and (reason := held(known)) is not None:
            raise Failure(f"session {session_id!r} is in use: {reason}; cancel it, or rm --force")
        if not tier.sessions.damaged(tenant, session_id) and "generation" not in known:
            head(tier, tenant, session_id)  # one that nobody can read goes, too
        freed = tier.drop(tenant, session_id)
        forget(tier, tenant, session_id)
    told = {"id": session_id, "removed": True, "bytes": freed}
    print(json.dumps(told) if as_json else f"session {session_id!r} is gone, {mib(freed)} are free")


def gc_command(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
    as_json: AsJson = False,
) -> None:
    """Take away what nobody needs: old sessions, files of no session, what killed writers left."""
    with opened() as tier:
        told = would_go(tier) if dry_run else asdict(tier.collect(partial(forget_old, tier)))
    if as_json:
        print(json.dumps(told | {"dry_run": dry_run}))
        return
    parts = ", ".join(f"{count} {name}" for name, count in told.items() if name != "bytes")
    print(f"{'would go' if dry_run else 'gone'}: {parts}; {mib(told['bytes'])}")


def would_go(tier: KvTier) -> dict[str, int]:
    """What gc would take, as far as the books know."""
    from kv_tier.names import kind_and_key

    ttl_ms = tier.limits.ttl_ms
    old = tier.ledger.unused_sessions(wall_ms() - ttl_ms) if ttl_ms else []
    rows = [tier.ledger.session(*names) for names in old]
    paths = [tier.objects.path(*kind_and_key(name)) for name in tier.ledger.orphans()]
    num_bytes = sum(row.bytes for row in rows if row)
    num_bytes += sum(path.stat().st_size for path in paths if path.exists())
    return {"sessions": len(old), "objects": len(paths), "bytes": num_bytes}
