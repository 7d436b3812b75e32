"""`lockstep session list`, `show`, `verify`: which are there, what they hold, what is damaged."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.console import Console
from rich.table import Table

from ingest.command.failure import FAILED, USAGE, Failure
from ingest.command.session.fit import why_not
from ingest.command.session.opened import AsJson, Id, Tenant, at, bar, head, mib, opened
from ingest.sessions.holder import session_object
from kv_tier.names import kind_and_key, links_of
from kv_tier.tier import KvTier, wall_ms
from workers.session.files import kv_root
from workers.settings import settings
from workers.wire import DEFAULT_TENANT

if TYPE_CHECKING:
    from kv_tier.manifest import Manifest

LISTED: Final = 50
EVERYTHING: Final = 1 << 60  # rows, or ms
COLUMNS: Final = ("id", "tenant", "tokens", "on disk", "last use", "model", "checkpoints", "pinned")
WIDE_ONLY: Final = ("checkpoints", "model")
WIDE_FROM: Final = 110  # characters of a terminal
SHOWN: Final = (
    *("tenant", "session_id", "model", "generation", "fence", "num_kv", "created_ms", "used_ms"),
    *("weights_digest", "arithmetic_version", "last_request", "digest", "forked_from"),
)


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
    else:
        print_list(shown, len(rows))


def print_list(shown: Sequence[dict[str, Any]], total: int) -> None:
    if not shown:
        print("no sessions: a request with a session_id begins one")
        return
    console = Console(soft_wrap=True)
    is_wide = console.width >= WIDE_FROM or not console.is_terminal
    console.print(table_of(shown, is_wide=is_wide))
    if len(shown) < total:
        print(f"{len(shown)} of {total}; --limit 0 shows all")


def table_of(shown: Sequence[dict[str, Any]], *, is_wide: bool) -> Table:
    """Whole names, to be copied; on a narrow terminal without what `session show` says, too."""
    lines = [cells(one) for one in shown]
    is_shared = any(one["tenant"] != DEFAULT_TENANT for one in shown)
    hidden = () if is_wide else WIDE_ONLY if is_shared else ("tenant", *WIDE_ONLY)
    kept = [name for name in COLUMNS if name not in hidden]
    table = Table(box=None, pad_edge=False)
    for name in kept:
        widest = max(len(line[name]) for line in lines)
        table.add_column("" if name == "pinned" else name, no_wrap=True, min_width=widest)
    for line in lines:
        table.add_row(*(line[name] for name in kept))
    return table


def cells(one: dict[str, Any]) -> dict[str, str]:
    """The line of a session, by column."""
    return {
        "id": one["id"],
        "tenant": one["tenant"],
        "tokens": f"{one['tokens']:,}",
        "on disk": mib(one["kv_bytes"]),
        "checkpoints": str(one["checkpoints"]),
        "model": one["model"],
        "last use": at(one["used_ms"]),
        "pinned": "pinned" if one["pinned"] else "",
    }


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
    else:
        print_session(told)


def print_session(told: dict[str, Any]) -> None:
    table = Table(box=None, show_header=False, pad_edge=False)
    for name, value in told.items():
        if name not in ("messages", "objects"):
            is_time = name.endswith("_ms")
            table.add_row(name, at(value) if is_time else "" if value is None else str(value))
    Console(soft_wrap=True).print(table)
    for one in told["objects"]:
        size = mib(one["bytes"]) if one["exists"] else "not there: it will be computed again"
        print(f"{one['kind']:<6} {one['begin']:>7} to {one['end']:<7} {one['key'][:16]}…  {size}")


def objects_of(tier: KvTier, manifest: "Manifest") -> list[dict[str, Any]]:
    """Each object that it names, in order of position."""
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


def verify_command(
    session_id: Annotated[
        str | None, typer.Argument(metavar="[ID]", help="The session's id.", show_default=False)
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Every file of every session.")] = False,
    tenant: Tenant = DEFAULT_TENANT,
    as_json: AsJson = False,
) -> None:
    """Read every file in full: exit code 1 when one is damaged, with its name."""
    if (session_id is None) != every:
        raise Failure("name a session, or give --all", USAGE)
    found = examined(session_id, tenant)
    there = [one for one in found if Path(one["path"]).exists()]
    damaged = [{"path": one["path"], "damage": one["damage"]} for one in there if one["damage"]]
    missing = [one["path"] for one in found if one["damage"] and one not in there]
    told = {"files": len(there), "damaged": damaged, "missing": missing}
    if as_json:
        print(json.dumps(told))
        raise typer.Exit(FAILED if damaged else 0)
    print_damage(told)
    if damaged:
        raise Failure(
            "a damaged file is never served: its part is computed again, or rm its session"
        )


def print_damage(told: dict[str, Any]) -> None:
    for one in told["damaged"]:
        print(f"damaged: {one['path']}: {one['damage']}")
    missing = len(told["missing"])
    gone = f", {missing} not there: they will be computed again" if missing else ""
    print(f"{told['files']} files read, {len(told['damaged'])} damaged{gone}")


def examined(session_id: str | None, tenant: str) -> list[dict[str, Any]]:
    """What dump.examine says of each file of a session; None: of all."""
    from kv_tier.dump import examine

    with opened() as tier, bar() as shown:
        paths = everything(tier) if session_id is None else files_of(tier, tenant, session_id)
        found = []
        for done, path in enumerate(paths):
            shown(f"{path.name[:16]}", done, len(paths))
            found.append(examine(path))
    return found


def files_of(tier: KvTier, tenant: str, session_id: str) -> list[Path]:
    """Its manifests, and all that the last one names. Raises Failure."""
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
