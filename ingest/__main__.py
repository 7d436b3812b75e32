"""The api process, python -m ingest: serves the HTTP door until SIGTERM.

Open streams are let go at once then, so that the process is gone within two seconds.
"""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Iterator

import uvicorn
from anyio.to_thread import run_sync
from redis.exceptions import RedisError

from ingest.access.connection import Connection
from ingest.access.gate import why_shut
from ingest.access.limits import HEAD_BYTES_MAX, URL_BYTES_MAX, HeadLimits
from ingest.app import create_app
from ingest.desk import Desk
from ingest.health.programs import read_program
from ingest.health.pulse import take_pulse
from ingest.health.ready import SAID_ELSEWHERE, needs_key, reachable, ready_lines
from ingest.health.routes import problems_of
from workers.log import logger
from workers.settings import BAD_CONFIG, settings_or_exit

POLL_S = 0.5  # until the node is ready
GRACE_S = 1  # for answers that are being sent; streams are let go before it


class Server(uvicorn.Server):
    """uvicorn, with our own way to stop: listeners are told first, and the exit status is 0."""

    def __init__(self, config: uvicorn.Config, desk: Desk) -> None:
        super().__init__(config)
        self.desk = desk
        self.stopping = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        yield

    async def main_loop(self) -> None:
        """uvicorn's wakes ten times a second to see whether it should exit; an idle node sleeps."""
        await self.on_tick(0)
        saying = asyncio.create_task(say_when_ready(self.desk))
        await self.stopping.wait()
        saying.cancel()

    def stop(self) -> None:
        self.should_exit = True
        self.desk.reader.stop()
        self.stopping.set()


async def say_when_ready(desk: Desk) -> None:
    """The ready line, once; not when it is said elsewhere, or we were started again."""
    config, began = desk.settings, time.monotonic()
    program = read_program(config.home, "api")
    is_again = program is not None and program.pid == os.getpid() and program.restarts > 0
    if SAID_ELSEWHERE in os.environ or is_again:
        return
    while not await run_sync(is_ready, desk):
        await asyncio.sleep(POLL_S)
    host, took_s = reachable(config.host), time.monotonic() - began
    with_key = await run_sync(needs_key, host, config.port)
    said = ready_lines(
        host=host, port=config.port, model=config.model, took_s=took_s, with_key=with_key
    )
    print(said, flush=True)


def is_ready(desk: Desk) -> bool:
    """Whether the node takes requests."""
    try:
        return desk.text is not None and not problems_of(take_pulse(desk.store), [])
    except (RedisError, OSError):
        return False


def config_of(desk: Desk) -> uvicorn.Config:
    """A lean uvicorn: no access log, no signature of itself."""
    return uvicorn.Config(
        HeadLimits(create_app(desk)),
        host=desk.settings.host,
        port=desk.settings.port,
        http=Connection,
        ws="none",
        h11_max_incomplete_event_size=URL_BYTES_MAX + HEAD_BYTES_MAX,
        log_config=None,
        log_level="error",  # what is no HTTP is no news
        access_log=False,
        server_header=False,
        date_header=False,
        timeout_graceful_shutdown=GRACE_S,
    )


def main() -> int:
    """Serves until a signal."""
    config = settings_or_exit()
    desk = Desk(config)
    reason = why_shut(config, desk.store)
    if reason is not None:
        logger("api").error(reason)
        return BAD_CONFIG
    logger("api").info("listening", url=f"http://{config.host}:{config.port}")
    Server(config_of(desk), desk).run()
    return 0


if __name__ == "__main__":
    code = main()
    os._exit(code)  # at once: taking the interpreter apart costs up to a second
