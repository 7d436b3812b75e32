"""The router process: `python -m router [NAME]` reads the request streams until SIGTERM.

NAME is the consumer's: the same after a restart, and no other router's. By default it is made of
the host and LOCKSTEP_HOME; give several routers of one home a name each.

It waits for the store, and when the store goes away it waits again: what it had read stays pending
there. A signal ends it at once while it waits, else after the message it is at.
"""

import os
import re
import signal
import socket
import sys
import time
from contextlib import suppress
from types import FrameType
from typing import Final

import xxhash
from redis.exceptions import RedisError

from router.loop import Router
from router.membership import Membership, membership
from router.prefetch import Prefetch
from workers.address import parse_networks
from workers.log import logger
from workers.session.files import open_tier
from workers.settings import BAD_CONFIG, Settings, settings_or_exit
from workers.store import Store
from workers.text.text_model import TextModel

RETRY_FIRST_S: Final = 0.1
RETRY_LONGEST_S: Final = 1.0
NO_MODEL_S: Final = 1.0

log = logger("router")


class Stopped(BaseException):
    """We are asked to stop and hold nothing that would have to be finished."""


class Stop:
    """SIGTERM and SIGINT: a flag for the loop, and an exception while it only waits."""

    def __init__(self) -> None:
        self.asked = self.may_raise = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self.ask)

    def ask(self, _number: int, _frame: FrameType | None) -> None:
        self.asked = True
        if self.may_raise:
            raise Stopped

    def __enter__(self) -> None:
        """Within the block nothing is lost by an exception at any point."""
        self.may_raise = True
        if self.asked:
            raise Stopped

    def __exit__(self, *_: object) -> None:
        self.may_raise = False


def load_text(config: Settings, stop: Stop) -> TextModel:
    """The served model's text side, as soon as it is there."""
    folder = config.home / "models" / config.model
    told = False
    while True:
        try:
            return TextModel.load(folder)
        except FileNotFoundError:
            if not told:
                log.info("waits for the model", folder=str(folder))
            told = True
            with stop:
                time.sleep(NO_MODEL_S)


def run(router: Router, stop: Stop) -> None:
    """Turns until we are asked to stop. Raises redis' errors when the store is away."""
    router.join()
    log.info("reads", consumer=router.consumer.name)
    while True:
        pause_s = router.turn()
        with stop:
            if pause_s is None:
                router.await_messages()
            elif pause_s:
                time.sleep(pause_s)


def run_through_outages(router: Router, stop: Stop) -> None:
    """run(), again and again; an outage makes one line in the log, however long it is."""
    retry_s, told = RETRY_FIRST_S, ""
    while True:
        joined_at = time.monotonic()
        try:
            run(router, stop)
        except RedisError as error:
            if time.monotonic() - joined_at > RETRY_LONGEST_S:
                retry_s, told = RETRY_FIRST_S, ""
            if str(error) != told:
                log.warning("waits for the store", why=str(error))
                told = str(error)
        with stop:
            time.sleep(retry_s)
        retry_s = min(retry_s * 2, RETRY_LONGEST_S)


def own_name(config: Settings) -> str:
    """The consumer's name when none is given; it begins with the node's, where that has one."""
    host = re.sub(r"[^A-Za-z0-9_.-]", "-", socket.gethostname())
    node = f"{config.node}." if config.node else ""
    return f"{node}{host}-{xxhash.xxh3_64_hexdigest(str(config.home.resolve()).encode())[:8]}"


def main(arguments: list[str]) -> int:
    """Until a signal comes."""
    config, stop, fleet = settings_or_exit(), Stop(), Membership(None)
    try:
        allow = parse_networks(config.webhook_allow)
    except ValueError as error:
        log.error(str(error))
        return BAD_CONFIG
    try:
        text, name = load_text(config, stop), arguments[0] if arguments else own_name(config)
        store = Store.of(config)
        fleet = membership(config, store, text)
        router = Router(
            store,
            name,
            text,
            allow,
            table=config.classes,
            max_queue=config.max_queue,
            stop_asked=lambda: stop.asked,
            prefetch=Prefetch(lambda: open_tier(config).prefetch).ask,
            fleet=fleet,
        )
        run_through_outages(router, stop)
    except Stopped:
        with suppress(RedisError):
            fleet.leave()
        log.info("stopped")
    return 0


if __name__ == "__main__":
    os._exit(main(sys.argv[1:]))  # at once: taking the interpreter apart costs up to a second
