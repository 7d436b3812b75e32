"""`traceparent`, by which a request is found in somebody's traces (W3C Trace Context, level 1).

    00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01
       trace                            span of whoever asks flags: 01 is sampled

It comes as an HTTP header or as a field of a request; what is none is ignored, as W3C wants it.
"""

import re
import secrets
from typing import Any, Final

TRACEPARENT: Final = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")


def traceparent_of(value: Any) -> str:
    """What a client sent as one; "" when it is none."""
    return value if isinstance(value, str) and TRACEPARENT.fullmatch(value) else ""


def new_traceparent() -> str:
    """That of a request whose client has sent none: a trace begins."""
    return f"00-{secrets.token_hex(16)}-{secrets.token_hex(8)}-01"
