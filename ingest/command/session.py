"""`lockstep session`: the conversations that are kept here: look, check, carry, fork, forget.

All work on the files, with and without a running node. rm asks the store whether a request of the
session waits or runs, and refuses then; --force does not mind. What a request leaves behind that
ends later is not kept: its fence is too old. What makes or deletes a session on purpose tells the
store so (forget), which else would miss its files.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn
from rich.table import Table

from ingest.command.failure import FAILED, USAGE, Failure
from ingest.holder import held, session_object
from kv_tier.files import DiskError, DiskFull
from kv_tier.format import CorruptFile
from kv_tier.sessions import BadName
from kv_tier.tier import KvTier, wall_ms
from workers.session.files import kv_root, open_tier
from workers.settings import settings
from workers.wire import DEFAULT_TENANT, full_id

if TYPE_CHECKING:
    from kv_tier.export import Carried, Node
    from kv_tier.manifest import Manifest

app = typer.Typer(
    help="Conversations that are kept on this node.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)
LISTED: Final = 50
EVERYTHING: Final = 1 << 60  # rows, or ms
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Tenant = Annotated[str, typer.Option(help="Whose.")]
Id = Annotated[str, typer.Argument(metavar="ID", help="The session's id.", show_default=False)]


@app.command("list")
def list_command(
    tenant: Annotated[str | None, typer.Option(help="Only this one's. Absent: all.")] = None,
    model: Annotated[str | None, typer.Option(help="Only those made with this model.")] = None,
    pinned: Annotated[bool, typer.Option("--pinned", help="Only pinned ones.")] = False,
    idle: Annotated[float, typer.Option(min=0, help="Only those unused for so many hours.")] = 0,
    limit: Annotated[int, typer.Option(min=0, help="How many at most; 0: all.")] = LISTED,
    as_json: AsJson = False,
) -> None:
    """The sessions, the one used last first."""
    before_ms = wall_ms() - round(idle * 3_600_000) if idle else EVERYTHING
    with opened() as tier:
        rows = [
            row
            for row in tier.ledger.list_sessions(tenant, limit=EVERYTHING)
            if model in (None, row.model) and row.pinned >= pinned and row.used_ms <= before_ms
        ]
    rows.sort(key=lambda row: row.used_ms, reverse=True)
    shown = [session_object(row) for row in rows[: limit or None]]
    if as_json:
        print(json.dumps({"sessions": shown, "total": len(rows)}))
        return
    if not shown:
        print("no sessions: a request with a session_id begins one")
        return
    heads = ("id", "tenant", "tokens", "on disk", "checkpoints", "model", "last use", "")
    table = Table(*heads, box=None, pad_edge=False)
    for one in shown:
        sizes = (f"{one['tokens']:,}", mib(one["kv_bytes"]), str(one["checkpoints"]))
        mark = "pinned" if one["pinned"] else ""
        table.add_row(one["id"], one["tenant"], *sizes, one["model"], at(one["used_ms"]), mark)
    Console(soft_wrap=True).print(table)
    if len(shown) < len(rows):
        print(f"{len(shown)} of {len(rows)}; --limit 0 shows all")


@app.command("show")
def show_command(session_id: Id, tenant: Tenant = DEFAULT_TENANT, as_json: AsJson = False) -> None:
    """What it is, which files it has, and whether this node can go on from them."""
    with opened() as tier:
        manifest = head(tier, tenant, session_id)
        row = tier.ledger.session(tenant, session_id)
        objects = objects_of(tier, manifest)
    reason = why_not(manifest)
    told = {
        **{name: value for name, value in asdict(manifest).items() if name in SHOWN},
        "tokens": len(manifest.token_ids),
        "pinned": bool(row and row.pinned),
        "usable": reason is None,
        "why_not": reason,
        "messages": [{"role": m.role, "content": m.content} for m in manifest.messages],
        "objects": objects,
    }
    if as_json:
        print(json.dumps(told, ensure_ascii=False))
        return
    table = Table(box=None, show_header=False, pad_edge=False)
    for name, value in told.items():
        if name not in ("messages", "objects"):
            is_time = name.endswith("_ms")
            table.add_row(name, at(value) if is_time else "" if value is None else str(value))
    console = Console(soft_wrap=True)
    console.print(table)
    for one in objects:
        size = mib(one["bytes"]) if one["exists"] else "not there: it will be computed again"
        print(f"{one['kind']:<6} {one['begin']:>7} to {one['end']:<7} {one['key'][:16]}…  {size}")


SHOWN: Final = (
    *("tenant", "session_id", "model", "generation", "fence", "num_kv", "created_ms", "used_ms"),
    *("weights_digest", "arithmetic_version", "last_request", "digest", "forked_from"),
)


@app.command("verify")
def verify_command(
    session_id: Annotated[
        str | None, typer.Argument(metavar="[ID]", help="The session's id.", show_default=False)
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Every file of every session.")] = False,
    tenant: Tenant = DEFAULT_TENANT,
    as_json: AsJson = False,
) -> None:
    """Read every file in full: exit code 1 when one is damaged, with its name."""
    from kv_tier.dump import examine

    if (session_id is None) != every:
        raise Failure("name a session, or give --all", USAGE)
    with opened() as tier, bar() as shown:
        paths = everything(tier) if session_id is None else files_of(tier, tenant, session_id)
        found = []
        for done, path in enumerate(paths):
            shown(f"{path.name[:16]}", done, len(paths))
            found.append(examine(path))
    there = [one for one in found if Path(one["path"]).exists()]
    damaged = [{"path": one["path"], "damage": one["damage"]} for one in there if one["damage"]]
    missing = [one["path"] for one in found if one["damage"] and one not in there]
    if as_json:
        told = {"files": len(there), "damaged": damaged, "missing": missing}
        print(json.dumps(told))
        raise typer.Exit(FAILED if damaged else 0)
    for one in damaged:
        print(f"damaged: {one['path']}: {one['damage']}")
    gone = f", {len(missing)} not there: they will be computed again" if missing else ""
    print(f"{len(there)} files read, {len(damaged)} damaged{gone}")
    if damaged:
        raise Failure(
            "a damaged file is never served: its part is computed again, or rm its session"
        )


@app.command("export")
def export_command(
    session_id: Id,
    path: Annotated[Path, typer.Argument(metavar="FILE", show_default=False)],
    tenant: Tenant = DEFAULT_TENANT,
    as_json: AsJson = False,
) -> None:
    """Write a session to one file: its log, its messages in plain words, and its KV."""
    from kv_tier.export import CannotExport, export_session

    with opened() as tier, bar() as shown:
        try:
            done = export_session(
                tier, tenant, session_id, path, lambda n, of: shown("writing", n, of)
            )
        except CannotExport as error:
            raise Failure(str(error)) from None
    say_carried(done, f"{path} is here", as_json)


@app.command("import")
def import_command(
    path: Annotated[Path, typer.Argument(metavar="FILE", show_default=False)],
    session_id: Annotated[
        str | None, typer.Option("--id", help="Absent: as it was called.", show_default=False)
    ] = None,
    tenant: Tenant = DEFAULT_TENANT,
    log_only: Annotated[bool, typer.Option("--log-only", help="The token log, no KV.")] = False,
    as_json: AsJson = False,
) -> None:
    """Read a session from a file; nothing of it can be seen before all of it was checked."""
    from kv_tier.bundle import BadExport
    from kv_tier.export import CannotImport, import_session

    node = None if log_only else served()
    if node is None and not log_only:
        raise Failure(
            f"model {settings().model!r} is not here, so nothing says whether its KV fits:"
            " make start fetches it; --log-only keeps the token log alone"
        )
    with opened() as tier, bar() as shown:
        try:
            done = import_session(
                tier, path, tenant, session_id, node, lambda n, of: shown("reading", n, of)
            )
        except (BadExport, CannotImport) as error:
            raise Failure(str(error)) from None
        forget(tenant, done.manifest.session_id)
    say_carried(done, f"session {done.manifest.session_id!r} is here", as_json)


@app.command("fork")
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
        try:
            new = tier.fork(tenant, source, target, position)
        except SessionExists as error:
            raise Failure(f"{error}: choose another id, or rm it first") from None
        forget(tenant, target)
    told = {"id": target, "forked_from": source, "tokens": len(new.token_ids), "kv": new.num_kv}
    kept = f"{told['tokens']} tokens, {told['kv']} of them with KV"
    print(json.dumps(told) if as_json else f"session {target!r} is here: {kept}")


@app.command("pin")
def pin_command(session_id: Id, tenant: Tenant = DEFAULT_TENANT, as_json: AsJson = False) -> None:
    """Keep it, however full the disk is and however long nobody uses it."""
    set_pin(tenant, session_id, True, as_json)


@app.command("unpin")
def unpin_command(session_id: Id, tenant: Tenant = DEFAULT_TENANT, as_json: AsJson = False) -> None:
    """Let it go when room is wanted, as any other."""
    set_pin(tenant, session_id, False, as_json)


@app.command("rm")
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
        forget(tenant, session_id)
    told = {"id": session_id, "removed": True, "bytes": freed}
    print(json.dumps(told) if as_json else f"session {session_id!r} is gone, {mib(freed)} are free")


@app.command("gc")
def gc_command(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
    as_json: AsJson = False,
) -> None:
    """Take away what nobody needs: old sessions, files of no session, what killed writers left."""
    with opened() as tier:
        told = would_go(tier) if dry_run else asdict(tier.collect(forget))
    if as_json:
        print(json.dumps(told | {"dry_run": dry_run}))
        return
    parts = ", ".join(f"{count} {name}" for name, count in told.items() if name != "bytes")
    print(f"{'would go' if dry_run else 'gone'}: {parts}; {mib(told['bytes'])}")


# --- what they have in common ---


@contextmanager
def opened() -> Iterator[KvTier]:
    """The node's sessions; what is wrong with them ends the command with a sentence."""
    try:
        tier = open_tier(settings())
        try:
            yield tier
        finally:
            tier.close()
    except BadName:
        rule = "1 to 64 letters, digits, - and _, without --; a tenant 1 to 32 of a-z and 0-9"
        raise Failure(f"that is no name: a session id is {rule}", USAGE) from None
    except DiskFull as error:
        raise Failure(f"{error}: free some room, or lockstep session gc") from None
    except (DiskError, CorruptFile) as error:
        raise Failure(f"{error}: lockstep session verify says which files are sound") from None


def head(tier: KvTier, tenant: str, session_id: str) -> "Manifest":
    """Raises Failure."""
    manifest = tier.sessions.head(tenant, session_id)
    if manifest is None:
        raise Failure(f"there is no session {session_id!r}: lockstep session list shows which are")
    return manifest


def set_pin(tenant: str, session_id: str, pinned: bool, as_json: bool) -> None:
    with opened() as tier:
        head(tier, tenant, session_id)
        tier.pin(tenant, session_id, pinned)
    word = "pinned" if pinned else "not pinned"
    told = {"id": session_id, "pinned": pinned}
    print(json.dumps(told) if as_json else f"session {session_id!r} is {word}")


def known_of(tenant: str, session_id: str) -> dict[str, Any]:
    """What the store knows. One that does not answer runs nothing new; what ran cannot commit."""
    from redis.exceptions import ConnectionError, TimeoutError

    from workers.store import Store

    try:
        return Store.of(settings()).session(full_id(tenant, session_id))
    except (ConnectionError, TimeoutError):
        return {}


def forget(tenant: str, session_id: str) -> None:
    """The store no longer misses the files that this session had. It may be away."""
    from redis.exceptions import RedisError

    from workers.store import Store

    with suppress(RedisError):
        Store.of(settings()).session_forget(full_id(tenant, session_id))


def objects_of(tier: KvTier, manifest: "Manifest") -> list[dict[str, Any]]:
    """Each object that it names, in order of position."""
    from kv_tier.names import kind_and_key, links_of

    found = []
    for link in links_of(manifest):
        kind, key = kind_and_key(link.name)
        path = tier.objects.path(kind, key)
        begin = 0 if kind == "state" else link.depth - link.num_tokens
        there = path.exists()
        size = path.stat().st_size if there else 0
        place = {"begin": begin, "end": link.depth, "key": key.hex()}
        found.append({"kind": kind, **place, "exists": there, "bytes": size})
    return found


def files_of(tier: KvTier, tenant: str, session_id: str) -> list[Path]:
    """Its manifests, and all that the last one names. Raises Failure."""
    from kv_tier.names import kind_and_key, links_of

    paths = sorted(tier.sessions.folder(tenant, session_id).glob("*.manifest"))
    manifest = tier.sessions.head(tenant, session_id)
    if manifest is not None:
        links = links_of(manifest)
        return paths + [tier.objects.path(*kind_and_key(link.name)) for link in links]
    if not paths:
        head(tier, tenant, session_id)
    return paths


def everything(tier: KvTier) -> list[Path]:
    """Every manifest, and every object, named or not."""
    root = kv_root(settings())
    manifests = sorted(root.glob("sessions/*/*/*.manifest"))
    return manifests + [tier.objects.path(kind, key) for kind, key, _, _ in tier.objects.walk()]


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


def served() -> "Node | None":
    """What KV must have been made with to be of use here; None: the model is not here."""
    from kernels.arithmetic import ARITHMETIC_VERSION
    from kv_tier.export import Node
    from workers.engine.payload import sizes_of
    from workers.model import catalog
    from workers.model.build import PACK
    from workers.model.config import BadModel
    from workers.model.pack import Weights

    home, name = settings().home, settings().model
    try:
        digest = catalog.card_of(home, name)["weights_digest"]
        config = Weights.open(catalog.folder_of(home, name) / PACK).config
    except (BadModel, OSError):
        return None
    return Node(name, digest, str(ARITHMETIC_VERSION), sizes_of(config, digest))


def why_not(manifest: "Manifest") -> str | None:
    """Why this node cannot go on from its KV; None: it can."""
    from kv_tier.export import misfit

    node = served()
    if node is None:
        return f"model {settings().model!r} is not here: lockstep model list"
    return misfit(manifest, node)


def say_carried(done: "Carried", sentence: str, as_json: bool) -> None:
    told = {
        "id": done.manifest.session_id,
        "tokens": len(done.manifest.token_ids),
        "kv_tokens": done.manifest.num_kv,
        "objects": done.objects,
        "left": done.left,
        "file_bytes": done.file_bytes,
    }
    if as_json:
        print(json.dumps(told))
        return
    left = f"; {done.left} are not there and will be computed again" if done.left else ""
    print(f"{sentence}: {told['tokens']} tokens, {done.objects} objects of KV{left}")


def at(time_ms: int) -> str:
    return f"{datetime.fromtimestamp(time_ms / 1000, UTC):%Y-%m-%d %H:%M:%SZ}"


def mib(num_bytes: int) -> str:
    return f"{num_bytes / 2**20:,.1f} MiB"


@contextmanager
def bar() -> Iterator[Any]:
    """A progress bar on stderr that goes when the work is done."""
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn())
    console = Console(stderr=True)
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as shown:
        task = shown.add_task("opening", total=None)

        def progress(what: str, done: int, total: int) -> None:
            shown.update(task, description=what, completed=done, total=total or None)

        yield progress
