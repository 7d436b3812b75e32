"""A real HTTP server that takes webhooks and believes only what is signed."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from standardwebhooks.webhooks import Webhook

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


class Receiver:
    """events: verified ones, (webhook-id, body) in the order of their arrival."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.forged = 0
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                self.send_response(receiver.take(body, dict(self.headers)))
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/hook"
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()

    def take(self, body: bytes, headers: dict[str, str]) -> int:
        lower = {name.lower(): value for name, value in headers.items()}
        try:
            event = Webhook(SECRET).verify(body, lower)
        except Exception:  # whatever is wrong with it, it is not ours
            self.forged += 1
            return 400
        self.events.append((lower["webhook-id"], event))
        return 204

    def of(self, request_id: str) -> list[tuple[str, dict[str, Any]]]:
        """Events of one request."""
        return [pair for pair in self.events if pair[1]["data"]["id"] == request_id]

    def stop(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()
