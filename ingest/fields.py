"""The fields of a request, out of the body and the headers in which any API brings them.

What a field may hold is router.admit's business.
"""

from collections.abc import Mapping
from secrets import token_hex
from typing import Any, Final

from ingest.errors import refused
from workers.wire import DEFAULT_TENANT

SLA_HEADER: Final = "x-lockstep-sla"
SESSION_HEADER: Final = "x-session-id"
TRACE_HEADER: Final = "traceparent"


def request_fields(body: Mapping[str, Any], headers: Mapping[str, str]) -> dict[str, Any]:
    """The request's own fields: null means absent.

    The headers count when the body names no class, or no session. A request without an id gets one,
    so that its sender can find it again.
    """
    fields = {name: value for name, value in body.items() if value is not None}
    named = ((SLA_HEADER, "sla"), (SESSION_HEADER, "session_id"), (TRACE_HEADER, "traceparent"))
    for header, name in named:
        if header in headers:
            fields.setdefault(name, headers[header])
    fields.setdefault("id", f"req-{token_hex(10)}")
    fields["tenant"] = DEFAULT_TENANT  # never the client's to say
    return fields


def flag(body: Mapping[str, Any], name: str, path: str | None = None) -> bool:
    """A field that is true or false; absent and null are false."""
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise refused(path or name, "must be true or false")
    return bool(value)
