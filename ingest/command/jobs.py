"""`lockstep jobs`: what was asked for lately, newest first."""

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Final

from rich.console import Console
from rich.table import Table
from typer import Option

from ingest.command.failure import USAGE, Failure
from ingest.errors import ApiError
from ingest.listing import after_of, page_object, wanted_of
from router.placement import shown_ms
from workers.job_list import list_jobs
from workers.settings import settings
from workers.store import Store
from workers.wire import DEFAULT_TENANT

COLUMNS: Final = (  # of a person's table, each with the width that it keeps
    *(("arrived", 14), ("id", 12), ("class", 8), ("status", 9), ("pool", 4), ("tokens", 6)),
    ("first", 6),
)


def jobs(
    state: Annotated[
        str | None, Option(help="accepted, queued, running, finished, ...: several by commas.")
    ] = None,
    sla: Annotated[str | None, Option(help="Of this class.")] = None,
    session: Annotated[str | None, Option(help="Of this session.")] = None,
    since: Annotated[str | None, Option(help="Arrived from then on: ISO 8601, or ms.")] = None,
    until: Annotated[str | None, Option(help="Arrived before.")] = None,
    tenant: Annotated[str, Option(help="Whose.")] = DEFAULT_TENANT,
    limit: Annotated[int, Option(min=1, max=1000, help="As many at most.")] = 20,
    after: Annotated[str | None, Option(help="Go on where a page ended: its `next`.")] = None,
    as_json: Annotated[bool, Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """List jobs, newest first."""
    store = Store.of(settings())
    given = {"state": state, "sla": sla, "session": session, "since": since, "until": until}
    asked = {name: value for name, value in given.items() if value is not None}
    try:
        wanted = wanted_of(asked, tenant, store.keys.classes)
        page = list_jobs(store, wanted, limit=limit, after=after_of(after))
    except ApiError as error:
        raise Failure(f"--{error.message}", USAGE) from None
    told = page_object(page)
    if as_json:
        print(json.dumps(told, ensure_ascii=False))
        return
    console = Console()
    console.print(table_of(told["data"]) if told["data"] else "no such job is known")
    if page.next is not None:
        console.print(f"there are more: --after {page.next}", soft_wrap=True)


def table_of(rows: list[dict[str, Any]]) -> Table:
    """For a person."""
    table = Table(box=None, pad_edge=False)
    for head, width in COLUMNS:
        table.add_column(head, no_wrap=True, overflow="ellipsis", min_width=width)
    table.add_column("why", overflow="ellipsis", no_wrap=True, ratio=1)
    for row in rows:
        usage = row["usage"] or {}
        first = row.get("ttft_ms")
        table.add_row(
            f"{datetime.fromtimestamp(row['arrival_ms'] / 1000):%m-%d %H:%M:%S}",
            row["id"],
            row.get("sla", ""),
            row["status"],
            row.get("plan") or row.get("pool", ""),
            str(usage.get("completion_tokens", "")),
            "" if first is None else shown_ms(first),
            why(row),
        )
    return table


def why(row: Mapping[str, Any]) -> str:
    """Its error, else the reason for its place."""
    error = row["error"]
    return str(error["message"]) if error else str(row.get("reason", ""))
