"""`lockstep key`: API keys of the HTTP door. A secret is printed once, when it is made.

add     a key: whose it is (tenant), what it may (scopes), how much of it (limits), how long
list    all keys, without their secrets
rotate  a new secret for a key; the one before it counts a while longer
remove  within a second it opens nothing more; what it asked for goes on
"""

import json
import re
from datetime import UTC, datetime
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.table import Table

from ingest.access.keys import (
    GIVEN,
    SCOPES,
    BadKey,
    Key,
    Limits,
    add_key,
    read_keys,
    remove_key,
    rotate_key,
)
from ingest.command.failure import USAGE, Failure
from workers.clock import now_ms
from workers.settings import settings
from workers.store import Store
from workers.wire import DEFAULT_TENANT

app = typer.Typer(
    help="API keys of the HTTP door.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)
UNITS_S: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}
NO_KEY_LEFT: Final = "No key is left: a door on loopback is open to this machine's programs again."
HOW_LONG: Final = "as 90d, 12h, 30m or 45s"

Name = Annotated[str, typer.Argument(help="Letters, digits, - and _; it stands in no secret.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Count = Annotated[int, typer.Option(min=0, help="0: any number.")]


@app.command("add")
def add_command(
    name: Name,
    tenant: Annotated[str, typer.Option(help="On whose account it asks.")] = DEFAULT_TENANT,
    scope: Annotated[
        list[str] | None,
        typer.Option(help=f"What it may: {', '.join(SCOPES)}; several times.", show_default=False),
    ] = None,
    requests_per_min: Count = 0,
    tokens_per_min: Count = 0,
    concurrent: Count = 0,
    expires: Annotated[str, typer.Option(help=f"After how long, {HOW_LONG}; absent: never.")] = "",
    as_json: AsJson = False,
) -> None:
    """Make a key and print its secret."""
    at_ms = now_ms()
    limits = Limits(
        requests_per_min=requests_per_min, tokens_per_min=tokens_per_min, concurrent=concurrent
    )
    key = Key(
        id=name,
        tenant=tenant,
        scopes=tuple(dict.fromkeys(scope or GIVEN)),
        limits=limits,
        created_ms=at_ms,
        expires_ms=at_ms + 1000 * seconds(expires, "expires") if expires else None,
    )
    try:
        secret = add_key(Store.of(settings()), key)
    except BadKey as bad:
        raise Failure(str(bad), USAGE) from None
    tell(secret, key, as_json)


@app.command("list")
def list_command(as_json: AsJson = False) -> None:
    """All keys, by name."""
    at_ms = now_ms()
    rows = [shown(key, at_ms) for key in read_keys(Store.of(settings())).values()]
    if as_json:
        print(json.dumps({"keys": rows}))
        return
    table = Table("key", "tenant", "scopes", "limits", "expires", "", box=None)
    for row in rows:
        limits = ", ".join(f"{n} {what}" for what, n in row["limits"].items() if n) or "none"
        told = (day(row["expires_ms"]), row["state"])
        table.add_row(row["id"], row["tenant"], " ".join(row["scopes"]), limits, *told)
    Console(soft_wrap=True).print(table if rows else "no keys")


@app.command("rotate")
def rotate_command(
    name: Name,
    overlap: Annotated[
        str, typer.Option(help=f"How long the old secret counts, {HOW_LONG}.")
    ] = "1d",
    as_json: AsJson = False,
) -> None:
    """Make a new secret for a key and print it."""
    store, at_ms = Store.of(settings()), now_ms()
    try:
        secret = rotate_key(store, name, now_ms=at_ms, overlap_s=seconds(overlap, "overlap"))
    except BadKey as bad:
        raise Failure(str(bad)) from None
    tell(secret, read_keys(store)[name], as_json)


@app.command("remove")
def remove_command(name: Name, as_json: AsJson = False) -> None:
    """Take a key away."""
    store = Store.of(settings())
    try:
        remove_key(store, name)
    except BadKey as bad:
        raise Failure(str(bad)) from None
    print(json.dumps({"id": name, "removed": True}) if as_json else f"{name} opens nothing more")
    if not read_keys(store):
        typer.echo(NO_KEY_LEFT, err=True)


def tell(secret: str, key: Key, as_json: bool) -> None:
    """The one time that a secret is printed: alone on stdout, so that a script can keep it."""
    if as_json:
        print(json.dumps({**shown(key, key.created_ms), "secret": secret}))
        return
    typer.echo(f"Nobody can read the secret of {key.id} again; keep it:", err=True)
    print(secret)


def shown(key: Key, at_ms: int) -> dict[str, Any]:
    """What may be seen of a key."""
    is_rotating = at_ms < key.old_until_ms
    state = "expired" if key.is_expired(at_ms) else "two secrets" if is_rotating else ""
    return {
        "id": key.id,
        "tenant": key.tenant,
        "scopes": list(key.scopes),
        "limits": {
            "requests_per_min": key.limits.requests_per_min,
            "tokens_per_min": key.limits.tokens_per_min,
            "concurrent": key.limits.concurrent,
        },
        "created_ms": key.created_ms,
        "expires_ms": key.expires_ms,
        "old_until_ms": key.old_until_ms or None,
        "state": state,
    }


def day(at_ms: int | None) -> str:
    return "never" if at_ms is None else f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%d}"


def seconds(text: str, option: str) -> int:
    """How long that is. Raises Failure."""
    match = re.fullmatch(r"(\d{1,9})([smhd])", text, re.ASCII)
    if match is None:
        raise Failure(f"--{option}: must be a time {HOW_LONG}, got {text!r}", USAGE)
    return int(match[1]) * UNITS_S[match[2]]
