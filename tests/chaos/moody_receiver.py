"""A receiver of webhooks with moods: slow, refusing, dripping, redirecting, lying.

Whatever its mood, it looks at each signature, and remembers what it was sent.
"""

import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec
from standardwebhooks.webhooks import Webhook

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
MOODS = ("slow", "refuses", "closes", "drips", "redirects", "lies", "limits")


class Delivery(msgspec.Struct, frozen=True):
    """One that came with a valid signature. taken: answered with 2xx."""

    webhook_id: str
    body: bytes
    data: dict[str, Any]
    taken: bool


class Handler(BaseHTTPRequestHandler):
    receiver: "MoodyReceiver"

    def do_POST(self) -> None:
        if self.path == "/trap":  # only a redirect leads here
            self.receiver.trapped += 1
        with suppress(OSError):
            self.answer(self.rfile.read(int(self.headers["Content-Length"])))

    def answer(self, body: bytes) -> None:
        mood = self.receiver.mood
        if mood == "slow":
            time.sleep(1.0)
        self.receiver.take(body, dict(self.headers), mood)
        if mood == "closes":
            return self.connection.close()
        if mood == "drips":
            return self.drip()
        status = {"refuses": 500, "lies": 500, "redirects": 307, "limits": 429}.get(mood, 204)
        self.send_response(status)
        if mood == "redirects":
            self.send_header("Location", self.receiver.path_of("trap"))
        if mood == "limits":
            self.send_header("Retry-After", "1")
        self.end_headers()
        return None

    def drip(self) -> None:
        """A header byte now and then, for as long as the mood lasts."""
        self.wfile.write(b"HTTP/1.1 204 No Content\r\nX-Drip: ")
        while self.receiver.mood == "drips":
            self.wfile.write(b"x")
            time.sleep(0.1)
        self.close_connection = True

    def log_message(self, *_: object) -> None:
        pass


class Server(ThreadingHTTPServer):
    """One whose clients may go at any moment."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass


class MoodyReceiver:
    """deliveries: signed ones, in the order of their arrival. forged, trapped: must stay 0."""

    def __init__(self) -> None:
        self.mood = ""
        self.deliveries: list[Delivery] = []
        self.forged = self.trapped = 0
        handler = type("Bound", (Handler,), {"receiver": self})
        self.server = Server(("127.0.0.1", 0), handler)
        self.port = int(self.server.server_port)
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True)
        self.thread.start()

    def path_of(self, name: str) -> str:
        return f"http://127.0.0.1:{self.port}/{name}"

    def take(self, body: bytes, headers: Mapping[str, str], mood: str) -> None:
        lower = {name.lower(): value for name, value in headers.items()}
        if not is_signed(body, lower):
            self.forged += 1
            return
        data = msgspec.json.decode(body)["data"]
        taken = mood in ("", "slow")
        self.deliveries.append(Delivery(lower["webhook-id"], body, data, taken))

    def of(self, request_id: str) -> list[Delivery]:
        return [one for one in self.deliveries if one.data["id"] == request_id]

    def stop(self) -> None:
        self.mood = ""
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


def is_signed(body: bytes, headers: Mapping[str, str]) -> bool:
    """As Webhook.verify, but for the age of the timestamp: the node's clock may jump here."""
    try:
        at = datetime.fromtimestamp(int(headers["webhook-timestamp"]), UTC)
        right = Webhook(SECRET).sign(headers["webhook-id"], at, body.decode())
        return right in headers["webhook-signature"].split()
    except (KeyError, ValueError):
        return False
