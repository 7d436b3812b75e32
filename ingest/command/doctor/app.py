"""`lockstep doctor`: what is wrong with this node, and what to do about each thing.

Looks from the bottom up: machine, build, configuration, files, model; then the store, and, if the
node runs, its programs, pools, requests and door. Exit code 0 when nothing is wrong, 1 otherwise.
It changes nothing.
"""

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from ingest.command import preflight, start
from ingest.command.doctor import files, machine, programs, requests, store
from ingest.command.doctor.finding import Finding, of_sentences, wrong
from workers.settings import Settings, complaints, settings

ROOT = Path(__file__).parents[3]


def doctor_command(
    deep: Annotated[
        bool, typer.Option("--deep", help="Also read all weights and compare their digest.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Look at machine, build, configuration and node; say what to do about what is wrong."""
    findings = list(examine(deep=deep))
    healthy = all(finding.is_good for finding in findings)
    if as_json:
        print(json.dumps({"healthy": healthy, "findings": [asdict(f) for f in findings]}, indent=1))
    else:
        for finding in findings:
            print(line(finding))
    raise typer.Exit(0 if healthy else 1)


def line(finding: Finding) -> str:
    mark = "ok  " if finding.is_good else "BAD "
    todo = f"\n{'':15}-> {finding.todo}" if finding.todo else ""
    return f"{mark} {finding.part:<9} {finding.what}{todo}"


def examine(*, deep: bool = False) -> Iterator[Finding]:
    """All findings, in the order that a person should read them."""
    yield from machine.examine(ROOT)
    try:
        config = settings()
    except (ValueError, OSError) as error:
        for sentence in complaints(error):
            todo = "correct it in lockstep.toml, or the variable"
            yield wrong("settings-wrong", "settings", sentence, todo)
        return
    yield from files.examine(config, deep=deep)
    yield from machine.huge_pages(config.huge_pages, files.pack_bytes(config))
    if start.running_keeper(config.home) is None:
        yield from stopped_node(config)
    else:
        yield from programs.keepers(config.home, ROOT / "Procfile")
        yield from running_node(config)


def stopped_node(config: Settings) -> Iterator[Finding]:
    """Whether a start would succeed."""
    yield wrong("node-stopped", "node", "does not run", "make start")
    ports = preflight.port_problems(config.host, config.port, "LOCKSTEP_PORT")
    yield from of_sentences("port-taken", "ports", ports, "the door's is free")
    if config.redis_url:
        yield from store.examine(config)
        return
    ports = preflight.port_problems("127.0.0.1", config.store_port, "LOCKSTEP_STORE_PORT")
    yield from of_sentences("port-taken", "ports", ports, "the store's is free")
    yield from store.log(config.home.resolve() / "store")


def running_node(config: Settings) -> Iterator[Finding]:
    """What the store says, and through it the router, the pools and their requests."""
    found = list(store.examine(config))
    yield from found
    if not any(finding.name in store.AWAY for finding in found):
        with store.opened(config) as connection:
            yield from programs.pools(connection, config.home)
            yield from requests.examine(connection)
    yield programs.door(config)
