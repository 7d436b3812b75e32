"""What an attacker meets: the front door of tests/ingest, with a stub in the place of the pools."""

import contextlib
import socket

import pytest

from tests.ingest.conftest import (
    door,
    node,
    settings,
    text,
    tiny_home,
    wait_until_fixture,
)

__all__ = ["door", "node", "settings", "text", "tiny_home", "wait_until_fixture"]


@pytest.fixture
def raw(door):
    """Sends bytes on connections of its own, and reads what comes until the end of one."""
    with contextlib.ExitStack() as opened:

        def connect(sent: bytes = b"") -> socket.socket:
            client = socket.create_connection(("127.0.0.1", door.desk.settings.port), timeout=20)
            opened.enter_context(contextlib.closing(client))
            client.sendall(sent)
            return client

        yield connect


def read_all(client: socket.socket) -> bytes:
    """All that comes until the server closes, or resets."""
    parts = []
    with contextlib.suppress(ConnectionResetError):
        while part := client.recv(1 << 16):
            parts.append(part)
    return b"".join(parts)
