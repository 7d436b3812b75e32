"""The body of a POST: read up to a limit, and a JSON object or one clear error.

How large it may be is looked at before it is read, how deep and wide before it is decoded; who
sends it too slowly is cut off by access/connection.py.
"""

from typing import Any

import msgspec
from fastapi import Request
from starlette.requests import ClientDisconnect

from ingest.access.limits import check_json
from ingest.errors import ApiError
from router.entry import BODY_BYTES_MAX


async def read_fields(request: Request) -> dict[str, Any]:
    """The JSON object of the body. Raises ApiError 400 or 413.

    A body that says it is too long is refused before a byte of it is read.
    """
    raw = await _read(request)
    check_json(raw)
    try:
        fields = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ApiError(400, f"the body is not JSON: {error}", code="invalid_json") from None
    if not isinstance(fields, dict):
        raise ApiError(400, "the body must be a JSON object", code="invalid_json")
    return fields


async def _read(request: Request) -> bytes:
    declared = request.headers.get("content-length", "0")
    if not declared.isdigit() or int(declared) > BODY_BYTES_MAX:
        raise _too_large()
    parts: list[bytes] = []
    size = 0
    try:
        async for part in request.stream():
            size += len(part)
            if size > BODY_BYTES_MAX:
                raise _too_large()
            parts.append(part)
    except ClientDisconnect:
        raise ApiError(499, "the client left before its body was complete") from None
    return b"".join(parts)


def _too_large() -> ApiError:
    limit = f"{BODY_BYTES_MAX >> 20} MiB"
    return ApiError(413, f"the body is larger than {limit}", code="body_too_large")
