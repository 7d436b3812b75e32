"""What a request is told that would be taken later: why not now, and when to ask again.

The HTTP door says it with 429 and Retry-After, what comes by a stream ends with it.
"""

from math import ceil
from typing import Final

from workers.wire import EndEvent

TOO_MUCH: Final = {  # by what Store.accept says when it did not take a request
    "rate_limited": "this tenant has asked for as much as it may in a minute",
    "key_limited": "this API key has asked for as much as it may in a minute",
    "key_busy": "this API key has as many requests under way as it may",
}


def class_is_full(waiting: int) -> str:
    """Why one more is not taken."""
    return f"{waiting} requests of its class wait already"


def retry_after_s(wait_ms: float) -> int:
    """Whole seconds, one at least."""
    return max(1, ceil(wait_ms / 1000))


def ask_again(reason: str, wait_ms: float) -> str:
    """The whole sentence."""
    return f"{reason}; ask again in {retry_after_s(wait_ms)} s"


def not_now(reason: str, wait_ms: float, code: str) -> EndEvent:
    """The end of such a request."""
    return EndEvent(
        status="failed",
        code=code,
        error=ask_again(reason, wait_ms),
        retry_after_s=retry_after_s(wait_ms),
    )
