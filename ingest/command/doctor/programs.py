"""The node's programs, as their keepers, their reports and the door say they are."""

import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from redis.exceptions import RedisError

from ingest.command.doctor.finding import Finding, wrong
from ingest.command.doctor.store import trouble
from ingest.health.programs import Program, read_program
from ingest.health.pulse import Pulse, take_pulse
from ingest.health.ready import reachable
from workers.fleet.names import processor_of
from workers.settings import Settings
from workers.store import Store
from workers.wire import PoolLoad


def keepers(home: Path, procfile: Path) -> Iterator[Finding]:
    """How each line of the Procfile is."""
    for name in [text.split(":")[0] for text in procfile.read_text().splitlines() if text]:
        program = read_program(home, name)
        if program is None or not program.is_kept:
            todo = "stop the node and start it again"
            yield wrong("program-unkept", name, "has no keeper", todo)
        else:
            yield keeper(program)


def keeper(program: Program) -> Finding:
    last, history = program.last_exit, ""
    if last is not None:
        history = f", {program.restarts} restarts, the last: {last.how}"
    if program.state == "running":
        return Finding(program.name, f"runs as {program.pid}{history}")
    told = program.told()
    again = f", starts again in {told['next_start_in_s']} s" if "next_start_in_s" in told else ""
    what = f"is {program.state}{history}{again}"
    todo = f"read its lines in the node's output: they begin with {program.name}"
    return wrong("program-restarting", program.name, what, todo)


def pools(store: Store, home: Path) -> Iterator[Finding]:
    """The router, and each pool."""
    try:
        pulse = take_pulse(store)
    except (RedisError, OSError) as error:
        yield trouble(error)
        return
    if pulse.num_routers:
        yield Finding("router", f"{pulse.num_routers} alive")
    else:
        yield wrong("router-silent", "router", "none reports", "read the router's lines")
    for name in store.keys.own_pools:
        yield from pool(name, pulse, read_program(home, processor_of(name)))
    if not any(load.state == "ready" for load in pulse.loads):
        todo = "wait for a model to load, else read the pools' lines"
        yield wrong("pool-none-ready", "pools", "none is ready: requests wait", todo)


def pool(name: str, pulse: Pulse, program: Program | None) -> Iterator[Finding]:
    """Its workers; one whose program runs and says nothing hangs, or reaches no store."""
    loads = [load for load in pulse.loads if load.pool == name]
    if not loads and program is not None and program.is_kept:
        ways = f"lockstep restart {processor_of(name)}, or kill -9 {program.pid}"
        todo = f"read its lines; {ways}: nothing is lost"
        yield wrong("pool-silent", f"pool {name}", "does not report", todo)
    for load in loads:
        yield worker(load)


def worker(load: PoolLoad) -> Finding:
    note = f" ({load.note})" if load.note else ""
    what = f"{load.state}{note}, {load.running} running"
    if load.state != "failed":
        return Finding(f"pool {load.pool}", what)
    todo = "nvidia-smi; it is tried again every 15 s, and its requests go on elsewhere meanwhile"
    return wrong("gpu-failed", f"pool {load.pool}", what, todo)


def door(config: Settings) -> Finding:
    """What /readyz says."""
    connection = http.client.HTTPConnection(reachable(config.host), config.port, timeout=5)
    try:
        connection.request("GET", "/readyz")
        reply = connection.getresponse()
        said: dict[str, Any] = json.loads(reply.read())
    except (OSError, ValueError, http.client.HTTPException) as error:
        what = f"/readyz does not answer: {error}"
        return wrong("door-silent", "api", what, "read the api's lines")
    finally:
        connection.close()
    if reply.status == 200:
        return Finding("api", "/readyz says ready")
    problems = "; ".join(f"{part} {what}" for part, what in said.get("problems", {}).items())
    what = f"/readyz says not ready: {problems}"
    return wrong("door-not-ready", "api", what, "see the findings above")
