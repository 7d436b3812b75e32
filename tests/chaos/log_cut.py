"""The store's log is cut: whose acceptance was in the part that is gone.

A request is accepted by the first command in the log that names it. What a cut takes is everything
after the last whole transaction before it, as workers/store_server.py and Valkey leave it.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

from workers.store_server import tail_of_log


def cut(store: Path, num_bytes: int, ids: Iterable[str]) -> set[str]:
    """Take bytes off the log's end, as a power loss does; which of the ids went with them."""
    path = tail_of_log(store)
    assert path is not None
    log = path.read_bytes()
    end = max(0, len(log) - num_bytes)
    kept = last_whole(log, end)
    with path.open("r+b") as file:
        file.truncate(end)
    return {name for name in ids if log.find(name.encode(), 0, kept) < 0 <= log.find(name.encode())}


def last_whole(log: bytes, end: int) -> int:
    """Where the last whole transaction before `end` ends."""
    kept = in_transaction = 0
    for at, name in commands(log[:end]):
        if name == b"MULTI":
            in_transaction = 1
        elif name == b"EXEC":
            in_transaction = 0
        if not in_transaction:
            kept = at
    return kept


def commands(log: bytes) -> Iterator[tuple[int, bytes]]:
    """(where it ends, its name) of each whole command; annotations and a torn end are left out."""
    at = 0
    while at < len(log):
        line = log.find(b"\r\n", at)
        if line < 0:
            return
        if log[at : at + 1] == b"#":  # a timestamp
            at = line + 2
            continue
        count, at, words = int(log[at + 1 : line]), line + 2, []
        for _ in range(count):
            line = log.find(b"\r\n", at)
            if line < 0:
                return
            size = int(log[at + 1 : line])
            words.append(log[line + 2 : line + 2 + size])
            at = line + 2 + size + 2
            if at > len(log):
                return
        yield at, words[0].upper()
