"""`lockstep restart`: pools begin anew, one worker after the other, and no request fails.

    asked ──► stopping: what runs is written to files and goes back to the front of its queue
          ──► gone, and started again by its keeper ──► loading ──► ready ──► the next one

What was handed back goes on in another pool meanwhile (router/replan.py), or here when it is ready
again; nothing is computed twice. The wish is RQ's shutdown command, so workers of other machines
hear it, too.
"""

import json
import time
from typing import Annotated, Any, Final

from typer import Argument, Option

from ingest.command.failure import USAGE, Failure
from workers.fleet.names import PROCESSORS, processor_of
from workers.settings import settings
from workers.store import Store
from workers.wire import PoolLoad

POLL_S: Final = 0.2
ASK_EVERY_S: Final = 5.0  # a worker that had just lost its connection did not hear it

Pools = Annotated[
    list[str], Argument(metavar="POOL...", help="gpu, cpu, or both.", show_default=False)
]
Patience = Annotated[
    float, Option(min=0, metavar="SECONDS", help="How long one may take to be ready again.")
]


def restart(
    pools: Pools,
    patience: Patience = 900.0,
    as_json: Annotated[bool, Option("--json", help="Print JSON.")] = False,
) -> None:
    """Restart the workers of pools, one after the other; 1 when one does not come back."""
    for pool in pools:
        if pool not in PROCESSORS:
            raise Failure(f"there is no pool {pool!r}: {' or '.join(PROCESSORS)}", USAGE)
    store = Store.of(settings())
    done: list[dict[str, Any]] = []
    for load in [load for pool in dict.fromkeys(pools) for load in ready_in(store, pool)]:
        if not as_json:
            print(f"{load.pool}: {load.worker} hands back what it has ...", flush=True)
        took_s = round(roll(store, load, patience), 1)
        done.append({"pool": load.pool, "worker": load.worker, "took_s": took_s})
        if not as_json:
            print(f"{load.pool}: {load.worker} is ready again after {took_s} s", flush=True)
    if as_json:
        print(json.dumps({"restarted": done}))


def ready_in(store: Store, pool: str) -> list[PoolLoad]:
    """The workers of a pool that can be restarted. Raises Failure when there is none."""
    loads = [load for load in store.loads() if processor_of(load.pool) == pool]
    ready = [load for load in loads if load.state == "ready"]
    if not ready:
        states = [f"{one.state} ({one.note})" if one.note else one.state for one in loads]
        raise Failure(f"{pool}: none is ready: {', '.join(states) or 'none reports'}")
    return ready


def roll(store: Store, load: PoolLoad, patience_s: float) -> float:
    """Restart one worker; seconds until it was ready again. Raises Failure when it is not."""
    from rq.command import send_shutdown_command

    begin, ask_at = time.monotonic(), 0.0
    while time.monotonic() - begin < patience_s:
        now = {one.worker: one for one in store.loads()}.get(load.worker)
        if now is not None and now.state == "ready" and now.began_ms != load.began_ms:
            return time.monotonic() - begin
        is_old = now is not None and now.state == "ready"
        if is_old and time.monotonic() >= ask_at:
            send_shutdown_command(store.redis, load.worker)
            ask_at = time.monotonic() + ASK_EVERY_S
        time.sleep(POLL_S)
    raise Failure(
        f"{load.pool}: {load.worker} was not ready again within {patience_s:g} s; "
        "`lockstep doctor` says what is wrong, and its requests wait for it"
    )
