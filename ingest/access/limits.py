"""What is too much before anything is parsed: the head of a request, and the shape of its JSON.

    head   URL and headers, by bytes and by number: HeadLimits around the application
    JSON   how deep, how many arrays and objects, how many values: check_json before the decoder

A decoder makes fifty bytes of memory of two bytes "[]," in a body, so its size alone is no limit.
Times and rates of a connection: connection.py.
"""

import re
from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from ingest.errors import BAD_HTTP, ApiError, error_response

URL_BYTES_MAX: Final = 8 << 10  # path and query
HEAD_BYTES_MAX: Final = 32 << 10  # names and values of all headers
HEADERS_MAX: Final = 100
BOTH_LENGTHS: Final = {b"content-length", b"transfer-encoding"}  # which counts, proxies differ in
DEPTH_MAX: Final = 64  # the published schema needs 8; tools bring schemas of their own
CONTAINERS_MAX: Final = 50_000  # arrays and objects
STRINGS_MAX: Final = 200_000  # names and values
VALUES_MAX: Final = 500_000  # token ids, say: twice the longest context that there is
# to the end of a string, or of the body where it has none: each byte is looked at once
STRING: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)', re.DOTALL)
NOT_BRACKETS: Final = re.compile(rb"[^\[\]{}]+")
STEP: Final = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}


class HeadLimits:
    """The application, for requests whose head is of a reasonable size."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = check_head(scope) if scope["type"] == "http" else None
        if refusal is None:
            await self.app(scope, receive, send)
        else:
            await error_response(refusal, scope["path"])(scope, receive, send)


def check_head(scope: Scope) -> ApiError | None:
    """Why a request's head is refused; None: it is not."""
    if len(scope["raw_path"]) + len(scope["query_string"]) > URL_BYTES_MAX:
        return ApiError(414, f"the URL is longer than {URL_BYTES_MAX} bytes", code="url_too_long")
    headers = scope["headers"]
    num_bytes = sum(len(name) + len(value) for name, value in headers)
    if len(headers) > HEADERS_MAX or num_bytes > HEAD_BYTES_MAX:
        limit = f"{HEADERS_MAX} headers and {HEAD_BYTES_MAX} bytes of them"
        return ApiError(431, f"the request has more than {limit}", code="head_too_large")
    if {name for name, _ in headers} >= BOTH_LENGTHS:
        reason = "Content-Length and Transfer-Encoding exclude each other"
        return ApiError(400, reason, code=BAD_HTTP)
    return None


def check_json(raw: bytes) -> None:
    """Raises ApiError 400 for JSON that is too deep or of too many parts, without decoding it.

    What it counts of bytes that are no JSON means nothing: the decoder refuses them.
    """
    # a string begins with a quote behind no backslash, and mostly ends with another one
    if raw.count(b'"') - raw.count(b'\\"') > 2 * STRINGS_MAX:
        raise _refusal(f"has more than {STRINGS_MAX} strings")
    opened = raw.count(b"[") + raw.count(b"{")
    if opened <= DEPTH_MAX and opened + raw.count(b",") < VALUES_MAX:
        return  # whatever stands in strings
    bare = STRING.sub(b"", raw)
    opened = bare.count(b"[") + bare.count(b"{")
    if opened > CONTAINERS_MAX:
        raise _refusal(f"has more than {CONTAINERS_MAX} arrays and objects")
    if opened + bare.count(b",") >= VALUES_MAX:
        raise _refusal(f"has more than {VALUES_MAX} values")
    if depth(bare) > DEPTH_MAX:
        raise _refusal(f"is nested deeper than {DEPTH_MAX}")


def depth(bare: bytes) -> int:
    """How deep JSON without its strings is nested at most."""
    deepest = level = 0
    for byte in NOT_BRACKETS.sub(b"", bare):
        level += STEP[byte]
        deepest = max(deepest, level)
    return deepest


def _refusal(what: str) -> ApiError:
    return ApiError(400, f"the body's JSON {what}", code="json_too_large")
