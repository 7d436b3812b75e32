"""This process has no descriptor, or no memory, to spare: that passes, and is no fault of a file.

Whoever meets it tries again for a while. If it does not pass, only another process can go on.
"""

import errno
import time
from collections.abc import Callable
from typing import Final, TypeVar

from kv_tier.files import DiskError

SHORT: Final = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN}
LASTS_S: Final = 5.0
LOOK_S: Final = 0.05
Result = TypeVar("Result")


def is_short(error: Exception) -> bool:
    """Whether it says nothing about a file, only about this process."""
    number = error.number if isinstance(error, DiskError) else getattr(error, "errno", None)
    return number in SHORT


def outlast(
    call: Callable[[], Result],
    *,
    waits: Callable[[], object],
    gives_up: Callable[[], bool],
    lasts_s: float = LASTS_S,
) -> Result:
    """What the call gives, which may be repeated, as soon as nothing is short.

    waits     called before each further try
    gives_up  asked before it; true: the last error is raised, as after lasts_s
    """
    deadline = time.monotonic() + lasts_s
    while True:
        try:
            return call()
        except (OSError, DiskError) as error:
            if not is_short(error) or gives_up() or time.monotonic() > deadline:
                raise
        waits()
        time.sleep(LOOK_S)
