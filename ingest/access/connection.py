"""A connection of the HTTP door: uvicorn's, with an end to whoever is slow on purpose.

    head      must be there HEAD_S after the first byte of it could have come
    body      GRACE_S, and a second more for each BODY_BYTES_PER_S that came: else 408
    answer    who takes nothing of it for READER_S is let go; a stream that nobody reads, too
    number    CONNECTIONS_MAX at once, and never all of the process's files: else 503

A client that is merely far away is never cut off by these: 4 KiB a second are enough.
"""

import asyncio
import resource
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, Final

import h11
import msgspec
from uvicorn.protocols.http.h11_impl import H11Protocol

from ingest.errors import BAD_HTTP, ApiError, error_object

HEAD_S: Final = 15.0
GRACE_S: Final = 15.0
BODY_BYTES_PER_S: Final = 4 << 10
READER_S: Final = 60.0
LOOK_S: Final = 5.0  # between two looks at a body that comes
CLOSING_S: Final = 10.0  # for the rest of an answer to be taken once we have closed
CONNECTIONS_MAX: Final = 10_000
FILES_KEPT: Final = 256  # for the store, models, sessions
RETRY_S: Final = 5

TOO_MANY: Final = ApiError(
    503, "too many connections; ask again", code="too_many_connections", retry_after_s=RETRY_S
)
TOO_SLOW: Final = ApiError(408, "the body came too slowly", code="body_too_slow")


class Connection(H11Protocol):
    """One client's connection. seconds: the length of one; tests shorten it."""

    seconds = 1.0

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.slow: asyncio.TimerHandle | None = None  # head or body
        self.reader: asyncio.TimerHandle | None = None
        self.body_bytes = 0
        self.body_began = 0.0

    # --- what asyncio and uvicorn call ---

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > most_connections():
            self.refuse(TOO_MANY)
        else:
            self._watch(HEAD_S, self._close)

    def data_received(self, data: bytes) -> None:
        self.body_bytes += len(data)
        super().data_received(data)
        is_asked = self.cycle is not None and not self.cycle.response_complete
        if not is_asked and self.slow is None and not self.transport.is_closing():
            self._watch(HEAD_S, self._close)  # a part of the next head, or of a body nobody wants

    def handle_events(self) -> None:
        before = self.cycle
        super().handle_events()
        if self.cycle is not before:
            self.body_bytes, self.body_began = 0, self.loop.time()
            self._watch(LOOK_S, self.look_at_body)

    def on_response_complete(self) -> None:
        self._unwatch()
        super().on_response_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self.reader = self.loop.call_later(READER_S * self.seconds, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self.reader is not None:
            self.reader.cancel()
            self.reader = None

    def connection_lost(self, exc: Exception | None) -> None:
        self._unwatch()
        if self.reader is not None:
            self.reader.cancel()
        super().connection_lost(exc)

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._close()

    def send_400_response(self, msg: str) -> None:
        """What is no HTTP gets our error object as well."""
        self.refuse(ApiError(400, msg, code=BAD_HTTP))

    # --- who is slow ---

    def look_at_body(self) -> None:
        """Every LOOK_S while a body comes; that we do not read it is not its sender's fault."""
        self.slow = None
        if self.cycle.response_started or not self.cycle.more_body:
            return
        took_s = (self.loop.time() - self.body_began) / self.seconds
        if not self.flow.read_paused and took_s > GRACE_S + self.body_bytes / BODY_BYTES_PER_S:
            self.refuse(TOO_SLOW)
        else:
            self._watch(LOOK_S, self.look_at_body)

    def _watch(self, after_s: float, call: Callable[[], None]) -> None:
        self._unwatch()
        self.slow = self.loop.call_later(after_s * self.seconds, call)

    def _unwatch(self) -> None:
        if self.slow is not None:
            self.slow.cancel()
            self.slow = None

    # --- how we close ---

    def refuse(self, error: ApiError) -> None:
        """Answers by hand, unless an answer has begun, and closes."""
        body = msgspec.json.encode(error_object(error))
        phrase = HTTPStatus(error.status).phrase
        lines = [f"HTTP/1.1 {error.status} {phrase}", "Connection: close"]
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
        if error.retry_after_s is not None:
            lines.append(f"Retry-After: {error.retry_after_s}")
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.write("\r\n".join([*lines, "", ""]).encode() + body)
        self._close()

    def _close(self) -> None:
        """Once what is written was taken, or after CLOSING_S."""
        self._unwatch()
        self.transport.close()
        self.loop.call_later(CLOSING_S * self.seconds, self.transport.abort)


def most_connections() -> int:
    """As many as there may be at once, by what this process may open."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = CONNECTIONS_MAX if files == resource.RLIM_INFINITY else files - FILES_KEPT
    return max(1, min(CONNECTIONS_MAX, free))
