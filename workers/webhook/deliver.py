"""One attempt: a POST to a judged address, within a deadline that nothing can stretch.

    name ──resolve once, judge all──► address ──connect──► TLS (SNI: the name) ──► POST ──► status
    └───────────────────────────── one deadline over all of it ─────────────────────────────┘

Redirects are never followed, the environment's proxies are not used, and of the answer only the
status and Retry-After matter: at most 64 KiB of it are read.
"""

import socket
import ssl
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import lru_cache
from typing import Any, Final, Literal

import certifi
import httpcore

from workers.address import (
    Forbidden,
    Lookup,
    Networks,
    Target,
    default_port,
    parse_url,
    resolve,
)

DEADLINE_S: Final = 15.0
CONNECT_S: Final = 5.0  # for one address; the next one gets its chance
ANSWER_BYTES_MAX: Final = 64 << 10
SLICE_BYTES: Final = 16 << 10
RETRIED_4XX: Final = (408, 425, 429)


@dataclass(frozen=True)
class Outcome:
    """What came of one attempt.

    kind           "delivered"; "retry": may go well later; "dead": will never
    status         the HTTP status, when there was one
    error          why, in words; "" when delivered
    retry_after_s  what the receiver asked for
    """

    kind: Literal["delivered", "retry", "dead"]
    status: int | None = None
    error: str = ""
    retry_after_s: float | None = None


@dataclass(frozen=True)
class Way:
    """How attempts leave this machine. lookup and tls are seams for the tests."""

    allow: Networks = ()
    deadline_s: float = DEADLINE_S
    lookup: Lookup = socket.getaddrinfo
    tls: ssl.SSLContext | None = None


def attempt(url: str, body: bytes, headers: Mapping[str, str], way: Way) -> Outcome:
    """Posts once. Raises nothing that the world may cause."""
    deadline = Deadline(way.deadline_s)
    try:
        target = parse_url(url)
        with _pool(target, way, deadline) as pool, _post(pool, target, body, headers) as answer:
            outcome = judge_status(answer.status, _retry_after_s(answer))
            _read_some(answer)
            return outcome
    except Forbidden as forbidden:
        return Outcome("dead", error=str(forbidden))
    except (TimeoutError, httpcore.TimeoutException):
        return Outcome("retry", error=f"no answer within {way.deadline_s:g} s")
    except (OSError, UnicodeError, httpcore.NetworkError, httpcore.ProtocolError) as error:
        return Outcome("retry", error=f"{type(error).__name__}: {error}"[:300])


def judge_status(status: int, retry_after_s: float | None = None) -> Outcome:
    """2xx is delivered; what no repeat can mend (3xx, most of 4xx) is dead; all else is retried."""
    if 200 <= status < 300:
        return Outcome("delivered", status)
    if 300 <= status < 400:
        return Outcome("dead", status, f"HTTP {status}: redirects are not followed")
    if 400 <= status < 500 and status not in RETRIED_4XX:
        return Outcome("dead", status, f"HTTP {status}")
    patience = retry_after_s if status in (429, 503) else None
    return Outcome("retry", status, f"HTTP {status}", patience)


def parse_retry_after(value: str, now: datetime) -> float | None:
    """Seconds from a Retry-After header: a number, or a date; None when it is neither."""
    value = value.strip()
    if value.isascii() and value.isdigit():
        return float(value[:9])
    try:
        when = parsedate_to_datetime(value)
    except (TypeError, ValueError):
        return None
    when = when if when.tzinfo else when.replace(tzinfo=UTC)
    return max(0.0, (when - now).total_seconds())


class Deadline:
    """The end of an attempt, by the clock that never jumps."""

    def __init__(self, seconds: float) -> None:
        self.at = time.monotonic() + seconds

    def left(self, at_most: float | None = None) -> float:
        """Seconds left; raises TimeoutError when there are none."""
        left = self.at - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return left if at_most is None else min(left, at_most)


class DeadlineStream(httpcore.NetworkStream):
    """A connection on which every single read and write ends by the deadline.

    httpcore's own timeouts are for one read each: a receiver that drips a byte now and then, in its
    headers too, would hold us for ever.
    """

    def __init__(self, inner: httpcore.NetworkStream, deadline: Deadline) -> None:
        self.inner, self.deadline = inner, deadline

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self.inner.read(max_bytes, self.deadline.left(timeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        for begin in range(0, len(buffer), SLICE_BYTES):
            self.inner.write(buffer[begin : begin + SLICE_BYTES], self.deadline.left(timeout))

    def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore.NetworkStream:
        left = self.deadline.left(timeout)
        return DeadlineStream(
            self.inner.start_tls(ssl_context, server_hostname, left), self.deadline
        )

    def get_extra_info(self, info: str) -> Any:
        return self.inner.get_extra_info(info)

    def close(self) -> None:
        self.inner.close()


class Guard(httpcore.NetworkBackend):
    """Connects to the judged addresses of one target, and to nothing else."""

    def __init__(self, target: Target, way: Way, deadline: Deadline) -> None:
        self.target, self.way, self.deadline = target, way, deadline
        self.inner = httpcore.SyncBackend()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        assert (host, port) == (self.target.host, self.target.port), f"asked for {host}:{port}"
        failure: Exception = OSError(f"{host} has no address")
        for address in self._addresses():  # the address, never the name again
            left = self.deadline.left(CONNECT_S)
            try:
                stream = self.inner.connect_tcp(address, port, left, local_address, socket_options)
                return DeadlineStream(stream, self.deadline)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failure = error
        raise failure

    def _addresses(self) -> list[str]:
        """Resolves in a thread of its own: a dead name server holds getaddrinfo for long."""
        answer: list[list[str] | Exception] = []

        def ask() -> None:
            try:
                answer.append(resolve(self.target, self.way.allow, self.way.lookup))
            except (Forbidden, OSError, UnicodeError) as error:
                answer.append(error)

        if self.target.address is not None:
            return resolve(self.target, self.way.allow, self.way.lookup)
        asking = threading.Thread(target=ask, daemon=True, name="lookup")
        asking.start()
        asking.join(self.deadline.left())
        if not answer:
            raise TimeoutError
        if isinstance(answer[0], Exception):
            raise answer[0]
        return answer[0]


@lru_cache(maxsize=1)
def _trusted() -> ssl.SSLContext:
    """The machine's certificate authorities (SSL_CERT_FILE adds to them) and certifi's."""
    context = ssl.create_default_context()
    context.load_verify_locations(certifi.where())
    return context


def _pool(target: Target, way: Way, deadline: Deadline) -> httpcore.ConnectionPool:
    context = None
    if target.scheme == "https":
        context = way.tls or _trusted()
    return httpcore.ConnectionPool(
        network_backend=Guard(target, way, deadline),
        ssl_context=context,
        max_connections=1,
        keepalive_expiry=0,
    )


def _post(
    pool: httpcore.ConnectionPool, target: Target, body: bytes, headers: Mapping[str, str]
) -> Any:
    url = httpcore.URL(scheme=target.scheme, host=target.host, port=target.port, target=target.path)
    is_default = target.port == default_port(target.scheme)
    host = target.endpoint.rpartition(":")[0] if is_default else target.endpoint
    sent: list[tuple[str | bytes, str | bytes]] = [
        ("host", host),
        ("content-type", "application/json"),
        ("content-length", str(len(body))),
        ("user-agent", "lockstep-webhook/1"),
        *headers.items(),
    ]
    return pool.stream("POST", url, headers=sent, content=body)


def _retry_after_s(answer: httpcore.Response) -> float | None:
    for name, value in answer.headers:
        if name.lower() == b"retry-after":
            return parse_retry_after(value.decode("latin-1"), datetime.now(UTC))
    return None


def _read_some(answer: httpcore.Response) -> None:
    """Lets the receiver finish a short answer; a long or slow one is cut off, its status stands."""
    read_bytes = 0
    try:
        for piece in answer.iter_stream():
            read_bytes += len(piece)
            if read_bytes > ANSWER_BYTES_MAX:
                return
    except (TimeoutError, httpcore.TimeoutException, httpcore.NetworkError, httpcore.ProtocolError):
        return
