"""/healthz and /readyz.

Health is measured by progress: work that waits while nothing moves is a fault.
"""

import time

from anyio.to_thread import run_sync
from fastapi import APIRouter, Request
from fastapi.responses import Response
from redis.exceptions import RedisError

from ingest.desk import Desk
from ingest.errors import ApiError, error_object
from ingest.health.programs import kept_programs
from ingest.health.pulse import STALL_S, Pulse, StallWatch, take_pulse
from ingest.sse import json_response
from workers.fleet.instance import node_id

routes = APIRouter()


@routes.get("/healthz")
async def healthz() -> Response:
    """This process answers."""
    return json_response({"status": "ok"})


@routes.get("/readyz")
async def readyz(request: Request) -> Response:
    """The node takes requests and gets on with them; else 503 and what is missing."""
    desk: Desk = request.app.state.desk
    watch: StallWatch = request.app.state.watch
    pools: dict[str, str] = {}
    kept = await run_sync(kept_programs, desk.settings.home)
    programs = {program.name: program.told() for program in kept}
    try:
        pulse = await run_sync(take_pulse, desk.store)
    except (RedisError, OSError):
        problems = {"store": "does not answer"}
    else:
        problems = problems_of(pulse, watch.stalled(pulse.vitals(), time.monotonic()))
        problems |= fleet_problems(pulse, node_id(desk.settings.home))
        pools = pools_of(pulse)
    if desk.text is None:
        problems["model"] = f"{desk.settings.model} is being prepared"
    if not problems:
        return json_response({"status": "ready", "pools": pools, "programs": programs})
    sentence = "; ".join(f"{part}: {what}" for part, what in problems.items())
    error = error_object(ApiError(503, f"not ready: {sentence}", code="not_ready"))
    told = {"problems": problems, "pools": pools, "programs": programs}
    body = {"status": "not ready", **told, **error}
    response = json_response(body, 503)
    response.headers["Retry-After"] = "1"
    return response


def problems_of(pulse: Pulse, stalled: list[str]) -> dict[str, str]:
    """What keeps the node from being ready, part by part."""
    problems = {name: f"has work and did not move for {STALL_S:.0f} s" for name in stalled}
    if pulse.num_routers == 0:
        problems["router"] = "does not run"
    if not any(load.state == "ready" for load in pulse.loads):
        states = [f"{load.pool} {load.state}" for load in pulse.loads]
        problems["pools"] = ", ".join(states) or "none runs"
    return problems


def fleet_problems(pulse: Pulse, instance: str) -> dict[str, str]:
    """Why the node takes no part in its fleet.   instance: the name of its LOCKSTEP_HOME"""
    if pulse.node is None:
        return {}
    if pulse.node.instance != instance:
        return {"fleet": f"another node, on {pulse.node.host}, is called {pulse.node.node!r}, too"}
    return {"fleet": pulse.node.refused} if pulse.node.refused else {}


def pools_of(pulse: Pulse) -> dict[str, str]:
    """How each pool is, and why: a node without its GPU is ready all the same."""
    pools: dict[str, str] = {}
    for load in pulse.loads:
        if pools.get(load.pool) != "ready":  # of several workers the best is told
            pools[load.pool] = f"{load.state}: {load.note}" if load.note else load.state
    return pools
