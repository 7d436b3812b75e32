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
from ingest.jobs.listing import after_of, page_object, wanted_of
from router.placement import shown_ms
from workers.job_list import list_jobs
from workers.settings import settings
from workers.store import Store
from workers.wire import DEFAULT_TENANT

COLUMNS: Final = ("arrived", "id", "class", "status", "pool", "tokens", "first")
WIDE_ONLY: Final = ("pool", "tokens", "first")  # `lockstep status ID` tells them, too
WIDE_FROM: Final = 100  # characters of a terminal


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
    table = table_of(told["data"], is_wide=console.width >= WIDE_FROM)
    console.print(table if told["data"] else "no such job is known")
    if page.next is not None:
        console.print(f"there are more: --after {page.next}", soft_wrap=True)


def table_of(rows: list[dict[str, Any]], *, is_wide: bool) -> Table:
    """For a person: whole ids, to be copied; what does not fit is cut off the last column."""
    lines = [cells(row) for row in rows]
    table = Table(box=None, pad_edge=False)
    heads = [head for head in COLUMNS if is_wide or head not in WIDE_ONLY]
    for head in heads:
        widest = max((len(line[head]) for line in lines), default=0)
        table.add_column(head, no_wrap=True, min_width=max(len(head), widest))
    table.add_column("why", overflow="ellipsis", no_wrap=True, ratio=1)
    for line in lines:
        table.add_row(*(line[head] for head in heads), line["why"])
    return table


def cells(row: Mapping[str, Any]) -> dict[str, str]:
    """The line of a job, by column."""
    usage, first = row["usage"] or {}, row.get("ttft_ms")
    return {
        "arrived": f"{datetime.fromtimestamp(row['arrival_ms'] / 1000):%m-%d %H:%M:%S}",
        "id": row["id"],
        "class": row.get("sla", ""),
        "status": row["status"],
        "pool": row.get("plan") or row.get("pool", ""),
        "tokens": str(usage.get("completion_tokens", "")),
        "first": "" if first is None else shown_ms(first),
        "why": why(row),
    }


def why(row: Mapping[str, Any]) -> str:
    """Its error, else the reason for its place."""
    error = row["error"]
    return str(error["message"]) if error else str(row.get("reason", ""))
