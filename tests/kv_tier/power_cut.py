"""What a disk may hold after the power was cut: what was synced, and any part of the rest.

    RecordingFiles ── writes down each operation ──► events ──► after_cut(events[:n]) ──► a folder

Harsher than any file system we know: of what was not synced, each page of each write, each size and
each name made, changed or taken away survives or not, whatever became of earlier ones. Synced are
a file's bytes and size by fdatasync of the file, a folder's names by fsync of the folder, and
nothing else by the way.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from kv_tier.files import OsFiles

SECTOR_BYTES = 4096
Event = tuple[Any, ...]  # name of the operation, and what it was about


class RecordingFiles(OsFiles):
    """OsFiles that work, and write down what they did; told() puts promises between."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._inodes: dict[int, int] = {}  # of each descriptor, while its file is being written

    def perform(self, path: Path, operation: Callable[..., Any], *args: Any, **named: Any) -> Any:
        result = super().perform(path, operation, *args, **named)
        name = operation.__name__
        if name == "create":
            self._inodes[result] = len(self.events)
            self.events.append((name, path, len(self.events)))
        elif name == "write":
            fd, piece, offset = args
            self.events.append((name, self._inodes[fd], bytes(piece)[:result], offset))
        elif name in ("reserve", "sync"):
            self.events.append((name, self._inodes[args[0]], *args[1:]))
        elif name in ("make_folder", "sync_folder", "remove", "remove_folder", "rename"):
            self.events.append((name, *args))
        return result

    def told(self, what: str, number: int) -> None:
        self.events.append(("told", what, number))


@dataclass
class File:
    """durable: what is surely there. pending: (offset, bytes), or (size, None) of a new size."""

    durable: bytes = b""
    pending: list[tuple[int, bytes | None]] = field(default_factory=list)

    def bytes_of(self, survives: Callable[[], bool]) -> bytes:
        data = bytearray(self.durable)
        for offset, piece in self.pending:
            if piece is None and survives():
                data.extend(bytes(max(0, offset - len(data))))
            for begin in range(0, len(piece or b""), SECTOR_BYTES):
                if survives():
                    sector = (piece or b"")[begin : begin + SECTOR_BYTES]
                    data.extend(bytes(max(0, offset + begin + len(sector) - len(data))))
                    data[offset + begin : offset + begin + len(sector)] = sector
        return bytes(data)


@dataclass
class Folder:
    """pending: names that are to be something else, None: gone; one operation after the other."""

    durable: dict[str, "File | Folder"] = field(default_factory=dict)
    pending: list[dict[str, "File | Folder | None"]] = field(default_factory=list)

    def names(self, survives: Callable[[], bool]) -> dict[str, "File | Folder"]:
        names: dict[str, File | Folder | None] = dict(self.durable)
        for change in self.pending:
            if survives():
                names |= change
        return {name: node for name, node in names.items() if node is not None}


class Disk:
    """What of a recorded run is durable, and what is not yet."""

    def __init__(self, top: Path) -> None:
        self.top = top  # a folder that is there for good
        self.tree = Folder()
        self._files: dict[int, File] = {}

    def apply(self, event: Event) -> None:
        name, *args = event
        if name != "told":
            getattr(self, name)(*args)

    def create(self, path: Path, inode: int) -> None:
        self._files[inode] = File()
        self._change(path, self._files[inode])

    def reserve(self, inode: int, size: int) -> None:
        self._files[inode].pending.append((size, None))

    def write(self, inode: int, piece: bytes, offset: int) -> None:
        self._files[inode].pending.append((offset, piece))

    def sync(self, inode: int) -> None:
        file = self._files[inode]
        file.durable, file.pending = file.bytes_of(lambda: True), []

    def rename(self, source: Path, target: Path) -> None:
        node = self._node(source)
        self._folder(source).pending.append({source.name: None, target.name: node})

    def remove(self, path: Path) -> None:
        self._change(path, None)

    remove_folder = remove

    def make_folder(self, path: Path) -> None:
        if path.name not in self._folder(path).names(lambda: True):
            self._change(path, Folder())

    def sync_folder(self, path: Path) -> None:
        if path != self.top.parent:
            folder = self._node(path)
            assert isinstance(folder, Folder), path
            folder.durable, folder.pending = folder.names(lambda: True), []

    def _change(self, path: Path, node: File | Folder | None) -> None:
        self._folder(path).pending.append({path.name: node})

    def _folder(self, path: Path) -> Folder:
        folder = self._node(path.parent)
        assert isinstance(folder, Folder), path
        return folder

    def _node(self, path: Path) -> File | Folder:
        node: File | Folder = self.tree
        for name in path.relative_to(self.top).parts:
            assert isinstance(node, Folder), path
            node = node.names(lambda: True)[name]
        return node


def after_cut(events: Iterable[Event], top: Path, rng: Random, target: Path) -> dict[str, int]:
    """Make in `target` what may be left of `top` after these events; what had been told by then.

    top  a folder that was there, and durable, before the first event
    """
    disk = Disk(top)
    told = {"fence": 0, "generation": 0}
    for event in events:
        disk.apply(event)
        if event[0] == "told":
            told[event[1]] = event[2]
    share = rng.choice([0.0, 0.1, 0.5, 0.9, 1.0])
    _write_out(disk.tree, target, lambda: rng.random() < share)
    return told


def _write_out(node: File | Folder, path: Path, survives: Callable[[], bool]) -> None:
    if isinstance(node, File):
        path.write_bytes(node.bytes_of(survives))
        return
    path.mkdir(exist_ok=True)
    for name, child in node.names(survives).items():
        _write_out(child, path / name, survives)
