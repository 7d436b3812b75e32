"""The one clock that crosses processes: Unix time in whole milliseconds.

How long something takes is measured by time.monotonic; which moment it is in Redis by the server's
own clock (names.lua).
"""

import time


def now_ms() -> int:
    """Unix milliseconds."""
    return time.time_ns() // 1_000_000
