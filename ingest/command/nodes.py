"""`lockstep nodes`: which nodes take part in the fleet, why others do not, how full each is."""

import json
from collections.abc import Sequence
from typing import Annotated

from rich.console import Console
from rich.table import Table
from typer import Option

from ingest.command.failure import Failure
from ingest.dashboard.nodes import node_objects
from ingest.fleet import seen_nodes
from ingest.shapes import Json
from workers.fleet.presence import forget
from workers.settings import settings
from workers.store import Store


def nodes(
    forgotten: Annotated[
        str,
        Option("--forget", metavar="NAME", help="Take a node off the list that will not return."),
    ] = "",
    as_json: Annotated[bool, Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Print the nodes on this Redis."""
    store = Store.of(settings())
    if forgotten:
        forget_node(store, forgotten)
    told = node_objects(seen_nodes(store))
    if as_json:
        print(json.dumps({"own": store.keys.node, "nodes": told}, ensure_ascii=False))
        return
    console = Console()
    console.print(nodes_table(told))
    for line in troubles(told):
        console.print(line)


def forget_node(store: Store, name: str) -> None:
    """Raises Failure for a node that lives, or is not known."""
    found = [node for node in seen_nodes(store) if node.name == name]
    if not found:
        raise Failure(f"there is no node {name!r}")
    if found[0].state not in ("gone", "stopped"):
        raise Failure(f"{name} is {found[0].state}: stop it first")
    if any(found[0].queues.values()):
        raise Failure(f"{name} has requests that the others have not taken over yet")
    forget(store, name)


def nodes_table(told: Sequence[Json]) -> Table:
    """A line a node, 80 wide; why one does not take part is said below."""
    heads = ("node", "state", "running", "queued", "tok/s", "share", "KV free", "pools", "version")
    table = Table(*heads, box=None, pad_edge=False)
    for node in told:
        table.add_row(
            node["name"] or "(alone)",
            node["state"],
            f"{node['running']}/{node['capacity']}",
            str(node["queued"]),
            f"{node['tokens_per_s']:.1f}",
            f"{node['share']:.0%}",
            f"{node['free_blocks']}/{node['total_blocks']}",
            ", ".join(shown_pools(node)) or "none reports",
            node["version"],
        )
    return table


def shown_pools(node: Json) -> list[str]:
    """Those that there are; a state is said unless it is ready."""
    there = [pool for pool in node["pools"] if pool["state"] != "absent"]
    return [
        pool["processor"] if pool["state"] == "ready" else f"{pool['processor']} {pool['state']}"
        for pool in there
    ]


def troubles(told: Sequence[Json]) -> list[str]:
    """A line for each node that does not take part."""
    return [f"{node['name']}: {node['trouble']}" for node in told if node["trouble"]]
