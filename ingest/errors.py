"""Errors as OpenAI's error object, whatever went wrong: one shape for 400 to 503.

It is {"error": {"message": "...", "type": "...", "param": "the field" or null, "code": "..."}}.
"""

import asyncio
from errno import EMFILE, ENFILE, ENOMEM, ENOSPC
from math import ceil
from typing import Any, Final

import msgspec
import redis.exceptions
from fastapi import FastAPI, Request
from fastapi.responses import Response
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from workers.log import logger
from workers.store import is_busy, is_full

RETRY_STORE_S: Final = 2  # how soon it is worth asking again when the store is away
RETRY_FULL_S: Final = 10  # and when it takes nothing more
# a refused upload is read and thrown away for so long, so that the client sees why
SHORTAGES: Final = (EMFILE, ENFILE, ENOMEM, ENOSPC)  # of this process or machine; they pass
LINGER_S: Final = 5.0
BAD_HTTP: Final = "bad_http"

TYPES: Final = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
ANTHROPIC: Final = "/v1/messages"  # below it errors have the shape that Anthropic's clients read
ANTHROPIC_TYPES: Final = {
    **TYPES,
    404: "not_found_error",
    413: "request_too_large",
    500: "api_error",
    503: "overloaded_error",
}
STATUS_OF_CODE: Final = {
    "cancelled": 499,  # not one of those that clients repeat by themselves
    "expired": 504,
    "bad_request": 400,
    "too_large": 400,
    "model_not_found": 404,
    "context_length_exceeded": 400,
    "impossible_deadline": 400,
    "overloaded": 429,
    "rate_limited": 429,
    "lost": 503,  # by a store that failed over
    "session_mismatch": 409,  # it belongs to other weights
    "session_not_saved": 503,  # there is an answer, but the next turn would not know it
}


class ApiError(Exception):
    """An answer other than 200. param names the field; retry_after_s becomes Retry-After.

    retry_after_ms, where it is known so exactly, becomes that and retry-after-ms, as OpenAI's
    clients read it.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: int | None = None,
        retry_after_ms: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.retry_after_ms = None if retry_after_ms is None else ceil(retry_after_ms)
        if retry_after_ms is not None:
            retry_after_s = max(1, ceil(retry_after_ms / 1000))
        self.retry_after_s = retry_after_s


def refused(field: str, sentence: str, code: str = "bad_request") -> ApiError:
    """What is wrong with a field of a body, a query or a header."""
    return ApiError(400, f"{field}: {sentence}", param=field, code=code)


def error_object(error: ApiError) -> dict[str, Any]:
    """OpenAI's error object."""
    kind = TYPES.get(error.status)
    if kind is None:
        kind = "invalid_request_error" if error.status < 500 else "server_error"
    fields = {"message": error.message, "type": kind, "param": error.param, "code": error.code}
    return {"error": fields}


def anthropic_object(error: ApiError) -> dict[str, Any]:
    """Anthropic's error object."""
    kind = ANTHROPIC_TYPES.get(error.status)
    if kind is None:
        kind = "invalid_request_error" if error.status < 500 else "api_error"
    return {"type": "error", "error": {"type": kind, "message": error.message}}


def error_response(error: ApiError, path: str = "") -> Response:
    """The HTTP answer that tells of `error`, in the shape of the API that the path belongs to."""
    headers = {}
    if error.retry_after_s is not None:
        headers["Retry-After"] = str(error.retry_after_s)
    if error.retry_after_ms is not None:
        headers["retry-after-ms"] = str(error.retry_after_ms)
    if error.code == BAD_HTTP:
        headers["Connection"] = "close"  # where the next request begins is not sure
    if error.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    kind = LingeringResponse if error.status == 413 else Response
    shape = anthropic_object if path.startswith(ANTHROPIC) else error_object
    body = msgspec.json.encode(shape(error))
    return kind(body, error.status, headers=headers, media_type="application/json")


def status_of(code: str | None) -> int:
    """The HTTP status for the `code` of a request that ended without a result."""
    return STATUS_OF_CODE.get(code or "", 500)


def store_away() -> ApiError:
    """What a client is told while Redis does not answer."""
    return ApiError(
        503, "the store does not answer; ask again", code="store_away", retry_after_s=RETRY_STORE_S
    )


def store_full() -> ApiError:
    """What a client is told while Redis answers but takes nothing: its memory or disk is full."""
    return ApiError(
        503, "the store is full; ask again later", code="store_full", retry_after_s=RETRY_FULL_S
    )


def short_of(error: OSError) -> ApiError:
    """What a client is told while this process lacks descriptors, memory or disk."""
    told = f"the node is short of something just now ({error.strerror}); ask again"
    return ApiError(503, told, code="short", retry_after_s=RETRY_FULL_S)


class LingeringResponse(Response):
    """Answers at once and closes only after the client stopped sending, or LINGER_S passed.

    Closing a socket with unread bytes resets it: the client would not see why it was refused.
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.headers["Connection"] = "close"
        start = {"type": "http.response.start", "status": self.status_code}
        await send({**start, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": self.body, "more_body": True})
        try:
            async with asyncio.timeout(LINGER_S):
                while (await receive()).get("more_body", False):
                    pass
        except TimeoutError:
            pass
        await send({"type": "http.response.body", "body": b""})


class LastWord:
    """Answers 503 to whom the ending process gives up; uvicorn would say 500."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun = False

        async def watched(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self.app(scope, receive, watched)
        except asyncio.CancelledError:
            if begun or scope["type"] != "http":
                raise
            await error_response(ending(), scope["path"])(scope, receive, send)


def ending() -> ApiError:
    """What a client is told whose request was not looked at before the process ended."""
    message = "the node is being restarted; ask again"
    return ApiError(503, message, code="stopping", retry_after_s=RETRY_STORE_S)


def install(app: FastAPI) -> None:
    """Makes every error of `app` an error object, also those that the framework finds itself."""

    app.add_middleware(LastWord)

    @app.exception_handler(ApiError)
    async def ours(request: Request, error: ApiError) -> Response:
        return error_response(error, request.url.path)

    @app.exception_handler(HTTPException)
    async def of_framework(request: Request, error: HTTPException) -> Response:
        words = {404: "there is no", 405: "method not allowed:"}.get(error.status_code)
        place = f"{request.method} {request.url.path}"
        message = f"{words} {place}" if words else str(error.detail)
        told = ApiError(error.status_code, message, code=_code(error))
        response = error_response(told, request.url.path)
        response.headers.update(error.headers or {})
        return response

    @app.exception_handler(redis.exceptions.ConnectionError)
    @app.exception_handler(redis.exceptions.TimeoutError)
    async def without_store(request: Request, error: Exception) -> Response:
        return error_response(store_away(), request.url.path)

    @app.exception_handler(redis.exceptions.ResponseError)
    async def refused_by_store(request: Request, error: Exception) -> Response:
        if is_busy(error):
            return await without_store(request, error)
        if not is_full(error):
            return await unforeseen(request, error)
        return error_response(store_full(), request.url.path)

    @app.exception_handler(OSError)
    async def without_room(request: Request, error: OSError) -> Response:
        if error.errno not in SHORTAGES:
            return await unforeseen(request, error)
        return error_response(short_of(error), request.url.path)

    @app.exception_handler(Exception)
    async def unforeseen(request: Request, error: Exception) -> Response:
        logger("api").error("request crashed", path=request.url.path, exc_info=error)
        told = ApiError(500, "internal error; it has been logged", code="internal")
        return error_response(told, request.url.path)


def _code(error: HTTPException) -> str | None:
    return {404: "not_found", 405: "method_not_allowed"}.get(error.status_code)
