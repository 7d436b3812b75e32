"""`lockstep top`: node or fleet in a terminal, anew each second: as on the dashboard, by Redis."""

import json
import time
from typing import Annotated

from redis.exceptions import ConnectionError as StoreAway
from redis.exceptions import TimeoutError as StoreSilent
from rich.console import Console
from rich.live import Live
from rich.text import Text
from typer import Option

from ingest.command.top_screen import Speeds, screen
from ingest.dashboard.look import look
from workers.settings import settings
from workers.store import Store

EVERY_S = 1.0


def top(
    once: Annotated[bool, Option("--once", help="Print it once and end.")] = False,
    as_json: Annotated[bool, Option("--json", help="Print one JSON object and end.")] = False,
    fleet: Annotated[bool, Option("--fleet", help="All nodes on this Redis.")] = False,
    every: Annotated[float, Option(min=0.2, metavar="SECONDS", help="Between looks.")] = EVERY_S,
) -> None:
    """Watch the node: pools, classes, what runs and why, until Ctrl-C."""
    config = settings()
    store = Store.of(config)
    if as_json:
        print(json.dumps(look(store, config.home, fleet=fleet), ensure_ascii=False))
        return
    speeds = Speeds()
    if once:
        Console().print(screen(look(store, config.home, fleet=fleet), speeds, fleet=fleet))
        return
    with Live(screen=True, auto_refresh=False) as live:
        while True:
            try:
                now = look(store, config.home, fleet=fleet)
                shown = screen(now, speeds, live.console.height, fleet=fleet)
            except (StoreAway, StoreSilent):
                shown = Text("the store does not answer; looking again ...", style="red")
            live.update(shown, refresh=True)
            time.sleep(every)
