"""A receiver of webhooks like real ones: it answers as a test tells it, and remembers what came."""

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from standardwebhooks.webhooks import Webhook

from workers.address import parse_networks

LOOPBACK = parse_networks("127.0.0.0/8")
SECRET = "whsec_" + "c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0"
CERTIFICATE = Path(__file__).parent / "hook_example.pem"


@dataclass
class Receiver:
    """statuses: what to answer, the last one for ever; got: (headers, body) of what came."""

    statuses: list[int] = field(default_factory=lambda: [200])
    headers: dict[str, str] = field(default_factory=dict)
    got: list[tuple[dict[str, str], bytes]] = field(default_factory=list)
    arrived: threading.Condition = field(default_factory=threading.Condition)
    open: threading.Event = field(default_factory=threading.Event)  # cleared: answers are held
    port: int = 0
    scheme: str = "http"

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}/hook"

    def wait(self, count: int, seconds: float = 30.0) -> None:
        """Until so many webhooks have come."""
        with self.arrived:
            assert self.arrived.wait_for(lambda: len(self.got) >= count, seconds), self.got

    def verified(self, secret: str = SECRET) -> list[dict]:
        """The bodies, each of them verified as a receiver would."""
        return [Webhook(secret).verify(body, headers) for headers, body in self.got]

    def take(self, headers: dict[str, str], body: bytes) -> int:
        with self.arrived:
            self.got.append((headers, body))
            self.arrived.notify_all()
            status = self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0]
        self.open.wait(60)
        return status


def serve(receiver: Receiver, port: int, tls: bool) -> ThreadingHTTPServer:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["content-length"]))
            status = receiver.take(dict(self.headers.items()), body)
            with suppress(OSError):
                self.send_response(status)
                for name, value in receiver.headers.items():
                    self.send_header(name, value)
                self.send_header("content-length", "0")
                self.end_headers()

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    server.daemon_threads = True
    if tls:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(CERTIFICATE)
        context.sni_callback = lambda _socket, name, _context: receiver.headers.update(sni=name)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    receiver.port, receiver.scheme = server.server_port, "https" if tls else "http"
    receiver.open.set()
    return server


@pytest.fixture
def receive() -> Iterator[Callable[..., Receiver]]:
    """A function that starts a receiver: receive(500, 200, port=0, tls=False)."""
    servers = []

    def start(*statuses: int, port: int = 0, tls: bool = False) -> Receiver:
        receiver = Receiver(list(statuses) or [200])
        servers.append((receiver, serve(receiver, port, tls)))
        return receiver

    yield start
    for receiver, server in servers:
        receiver.open.set()
        server.shutdown()
        server.server_close()


@pytest.fixture
def answer_raw() -> Iterator[Callable[[Callable[[socket.socket], None]], str]]:
    """A function that starts a server that does as it likes with each connection; gives its URL."""
    stopped, listeners = threading.Event(), []

    def start(answer: Callable[[socket.socket], None]) -> str:
        listener = socket.create_server(("127.0.0.1", 0))
        listeners.append(listener)

        def run() -> None:
            while not stopped.is_set():
                with suppress(OSError):
                    connection, _ = listener.accept()
                    with connection, suppress(OSError):
                        connection.recv(65536)
                        answer(connection)

        threading.Thread(target=run, daemon=True).start()
        return f"http://127.0.0.1:{listener.getsockname()[1]}/hook"

    yield start
    stopped.set()
    for listener in listeners:
        listener.close()
