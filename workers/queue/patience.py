"""What a worker does when the store is away: it waits, says so once, and goes on where it was."""

import time
from collections.abc import Callable
from typing import Final, TypeVar

from redis.exceptions import RedisError

from workers.log import logger

log = logger("queue")
PAUSE_S: Final = (0.05, 0.1, 0.2, 0.5, 1.0)  # then every second
Result = TypeVar("Result")


def patiently(
    call: Callable[[], Result], gives_up: Callable[[], bool], what: str = "store"
) -> Result:
    """Repeat a call that may be repeated until the store answers.

    gives_up is asked after each failure; true: the last error is raised.
    """
    failures = 0
    while True:
        try:
            result = call()
        except RedisError as error:
            if gives_up():
                raise
            if failures == 3:
                log.warning("the store is away, waiting", what=what, error=str(error)[:200])
            time.sleep(PAUSE_S[min(failures, len(PAUSE_S) - 1)])
            failures += 1
        else:
            if failures > 3:
                log.info("the store is back", what=what)
            return result
