"""The api process, python -m ingest: serves the HTTP door until SIGTERM.

Open streams are let go at once then, so that the process is gone within two seconds.
"""

import asyncio
import contextlib
import os
import signal
from collections.abc import Iterator

import uvicorn

from ingest.app import create_app
from ingest.desk import Desk
from workers.log import logger
from workers.settings import settings_or_exit

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
        await self.stopping.wait()

    def stop(self) -> None:
        self.should_exit = True
        self.desk.reader.stop()
        self.stopping.set()


def config_of(desk: Desk) -> uvicorn.Config:
    """A lean uvicorn: no access log, no signature of itself."""
    return uvicorn.Config(
        create_app(desk),
        host=desk.settings.host,
        port=desk.settings.port,
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        timeout_graceful_shutdown=GRACE_S,
    )


def main() -> None:
    """Serves until a signal."""
    config = settings_or_exit()
    desk = Desk(config)
    logger("api").info("listening", url=f"http://{config.host}:{config.port}")
    Server(config_of(desk), desk).run()


if __name__ == "__main__":
    main()
    os._exit(0)  # at once: taking the interpreter apart costs up to a second
