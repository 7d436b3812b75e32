"""A TCP proxy that can misbehave: connections are cut, stalled, slow, or lose what is on its way.

client ──► Link.port ──► target        and back; each direction of a connection is a thread
"""

import socket
import struct
import threading
import time
from contextlib import suppress

PIECE = 1 << 16
RESET = struct.pack("ii", 1, 0)  # SO_LINGER: close sends RST, what is buffered is dropped


class Link:
    """delay_s: that each piece waits. stalled: nothing moves while it is set. refuses: as if down.

    lose_replies, tear: so many next pieces towards the client, or towards the target, are lost
    (torn: the first half arrives), and with each of them its connection.
    """

    def __init__(self, target: int) -> None:
        self.target = target
        self.delay_s = 0.0
        self.stalled = threading.Event()
        self.refuses = False
        self.lose_replies = self.tear = self.lost = 0
        self.lock = threading.Lock()
        self.pairs: set[tuple[socket.socket, socket.socket]] = set()
        self.server = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.port = int(self.server.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self.server.accept()
            except OSError:  # closed
                return
            threading.Thread(target=self._connect, args=(client,), daemon=True).start()

    def _connect(self, client: socket.socket) -> None:
        if self.refuses:
            return reset(client)
        try:
            target = socket.create_connection(("127.0.0.1", self.target))
        except OSError:
            return reset(client)
        for end in (client, target):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        pair = (client, target)
        with self.lock:
            self.pairs.add(pair)
        threading.Thread(target=self._pump, args=(target, client, pair, True), daemon=True).start()
        self._pump(client, target, pair, False)

    def _pump(
        self,
        source: socket.socket,
        sink: socket.socket,
        pair: tuple[socket.socket, socket.socket],
        is_reply: bool,
    ) -> None:
        with suppress(OSError):
            while piece := source.recv(PIECE):
                self._hold()
                if self._takes(is_reply):
                    if not is_reply:
                        sink.sendall(piece[: len(piece) // 2])
                    return self._drop(pair)
                sink.sendall(piece)
        return self._drop(pair)

    def _hold(self) -> None:
        if self.delay_s:
            time.sleep(self.delay_s)
        while self.stalled.is_set():
            time.sleep(0.01)

    def _takes(self, is_reply: bool) -> bool:
        """Whether this piece is one of those that are lost."""
        name = "lose_replies" if is_reply else "tear"
        with self.lock:
            left: int = getattr(self, name)
            if left:
                setattr(self, name, left - 1)
                self.lost += 1
        return left > 0

    def _drop(self, pair: tuple[socket.socket, socket.socket]) -> None:
        with self.lock:
            self.pairs.discard(pair)
        for end in pair:
            reset(end)

    def cut(self) -> int:
        """Reset all connections; gives how many."""
        with self.lock:
            pairs = list(self.pairs)
        for pair in pairs:
            self._drop(pair)
        return len(pairs)

    def mend(self) -> None:
        """As it should be, from now on."""
        self.delay_s, self.refuses, self.lose_replies, self.tear = 0.0, False, 0, 0
        self.stalled.clear()

    def close(self) -> None:
        self.mend()
        with suppress(OSError):
            self.server.shutdown(socket.SHUT_RDWR)  # wakes accept
        self.server.close()
        self.cut()


def reset(end: socket.socket) -> None:
    """Close with RST, also when somebody waits in recv."""
    with suppress(OSError):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()
