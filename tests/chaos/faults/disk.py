"""Faults of the disk: sessions' one is full, their files are damaged, lost, or their ledger is."""

import errno
import os
from pathlib import Path

from tests.chaos.storm import Storm

STORE_HOG_S = (1.0, 3.0)


def full_disk(storm: Storm) -> None:
    """Not a byte is left beside the sessions, for a while."""
    if not storm.node.has_disk:
        return storm.note("no disk of its own may be mounted here")
    fill(storm, storm.node.home / "kv" / "hog")
    return None


def full_disk_of_store(storm: Storm) -> None:
    """Redis cannot write its log: it refuses, and goes on when there is room."""
    if not storm.node.has_disk:
        return storm.note("no disk of its own may be mounted here")
    fill(storm, storm.node.home / "store" / "hog")
    return None


def fill(storm: Storm, hog: Path) -> None:
    try:
        with hog.open("wb", buffering=0) as file:
            try:
                while file.write(bytes(1 << 14)):
                    pass
            except OSError as error:
                assert error.errno == errno.ENOSPC, error
        storm.sleep(*STORE_HOG_S)
    finally:
        hog.unlink(missing_ok=True)


def flipped_bits(storm: Storm) -> None:
    """Some files of KV and state have a wrong byte; what is mapped already stays what it was."""

    def flip(data: bytearray) -> None:
        data[storm.chance.randrange(len(data))] ^= 1 << storm.chance.randrange(8)

    for path in some_objects(storm):
        damaged = bytearray(path.read_bytes())
        if damaged:
            flip(damaged)
            put(path, bytes(damaged))


def cut_files(storm: Storm) -> None:
    """Some are shorter than they should be."""
    for path in some_objects(storm):
        data = path.read_bytes()
        if data:
            put(path, data[: storm.chance.randrange(len(data))])


def lost_files(storm: Storm) -> None:
    for path in some_objects(storm):
        path.unlink(missing_ok=True)


def lost_ledger(storm: Storm) -> None:
    """The bookkeeping of the files is gone, or is nonsense; it is made again from them."""
    for path in sorted((storm.node.home / "kv").glob("ledger.sqlite*")):
        if storm.chance.random() < 0.5:
            path.unlink(missing_ok=True)
        else:
            put(path, storm.chance.randbytes(4096))


def some_objects(storm: Storm) -> list[Path]:
    found = [
        path
        for path in sorted((storm.node.home / "kv" / "objects").glob("*/*"))
        if not path.name.startswith(".")
    ]
    chosen = storm.chance.sample(found, k=(len(found) + 1) // 2)
    storm.note(f"{len(chosen)} of {len(found)} files")
    return chosen


def put(path: Path, data: bytes) -> None:
    """In its place, as a new file: who has mapped the old one keeps it."""
    aside = path.with_name(f".chaos-{path.name}")
    try:
        aside.write_bytes(data)
        aside.chmod(0o600)
        os.replace(aside, path)
    except OSError:  # the node has taken it away, or the disk is full
        aside.unlink(missing_ok=True)
