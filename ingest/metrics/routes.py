"""/metrics: the page that Prometheus reads."""

import os
from collections.abc import Sequence

from anyio.to_thread import run_sync
from fastapi import APIRouter, Request
from fastapi.responses import Response
from prometheus_client import CONTENT_TYPE_LATEST
from redis.exceptions import RedisError

from ingest.access.gate import needs
from ingest.desk import Desk
from ingest.fleet import SeenNode, seen_nodes
from ingest.health.programs import kept_programs
from ingest.health.pulse import Pulse, take_pulse
from workers.log import logger

routes = APIRouter()


@routes.get("/metrics", dependencies=[needs("metrics")])
async def metrics(request: Request, fleet: bool = True) -> Response:
    """The page that Prometheus reads; without the store, what this process knows itself.

    Of all nodes of a fleet; with fleet=false the pools of this one alone.
    """
    desk: Desk = request.app.state.desk
    pulse, nodes = await run_sync(looked_at, desk)
    try:
        disk = await run_sync(disk_stats, desk)
    except Exception as error:  # a sick disk is no reason to say nothing of the rest
        logger("api").warning("no metrics of sessions", error=str(error))
        disk = {}
    desk.metrics.programs.programs = await run_sync(kept_programs, desk.settings.home)
    page = desk.metrics.page(pulse, len(desk.reader.listeners), disk, nodes, whole=fleet)
    return Response(page, media_type=CONTENT_TYPE_LATEST)


def looked_at(desk: Desk) -> tuple[Pulse | None, Sequence[SeenNode]]:
    """What the store says; without it, nothing."""
    try:
        return take_pulse(desk.store), seen_nodes(desk.store)
    except (RedisError, OSError):
        return None, ()


def disk_stats(desk: Desk) -> dict[str, float]:
    """Of this node's sessions, by the names of metrics/kv.py's DISK; empty while there are none.

    Reads files: not in the event loop. Raises what files raise.
    """
    if not (desk.settings.home / "kv").is_dir():
        return {}
    tier = desk.tier()
    disk = os.statvfs(tier.root)
    return {**tier.stats(), "free_bytes": float(disk.f_bavail * disk.f_frsize)}
