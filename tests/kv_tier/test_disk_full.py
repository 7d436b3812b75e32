"""A full or failing disk: a typed error, nothing left behind, and what was committed stays."""

import errno
import subprocess
from pathlib import Path

import pytest

from kv_tier.files import DiskError, DiskFull, OsFiles
from kv_tier.objects import ObjectStore
from kv_tier.sessions import Sessions
from tests.kv_tier.conversation import SESSION, TENANT, check, source_of, talk
from tests.kv_tier.faulty_files import FaultyFiles, fails

KEY = bytes(range(32))


def talk_until_refused(root: Path, files: OsFiles) -> tuple[dict[str, int], DiskError | None]:
    told = {"fence": 0, "generation": 0}
    try:
        talk(root, files, lambda what, number: told.update({what: number}))
    except DiskError as error:
        return told, error
    return told, None


def temporary_files(root: Path) -> list[Path]:
    return list(root.rglob(".tmp-*"))


@pytest.mark.parametrize(
    ("number", "raised"),
    [(errno.ENOSPC, DiskFull), (errno.EDQUOT, DiskFull), (errno.EIO, DiskError)],
)
def test_each_operation_that_is_refused_costs_nothing_but_itself(scratch, number, raised):
    counted = FaultyFiles()
    talk(scratch / "counted", counted, lambda what, number: None)
    silent = {"remove", "open", "pread", "read_bytes", "populate"}
    for at in range(1, counted.count + 1):
        if counted.done[at - 1] in silent:
            continue
        root = scratch / str(at)
        told, error = talk_until_refused(root, FaultyFiles(at, fails(number)))
        assert type(error) is raised and error.number == number, counted.done[at - 1]
        assert not temporary_files(root)
        check(root, **told)


def test_a_small_disk_that_fills_up_is_an_error_and_no_loss(tmp_path):
    """On a real file system of 120 KiB, less what else lies there; a conversation does not fit."""
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=120k", "tmpfs", tmp_path], capture_output=True
    ).returncode:
        pytest.skip("may not mount a tmpfs here; the other tests of this file need none")
    try:
        hog = tmp_path / "hog"
        for pages in range(1, 28, 2):
            hog.write_bytes(bytes(4096 * pages))
            root = tmp_path / "kv"
            told, error = talk_until_refused(root, OsFiles())
            assert type(error) is DiskFull
            assert not temporary_files(root)
            hog.unlink()
            check(root, **told, may_be_next=False)
            subprocess.run(["rm", "-rf", root], check=True)
    finally:
        subprocess.run(["umount", tmp_path], check=True)


def test_what_cannot_be_taken_away_wedges_nothing(scratch):
    counted = FaultyFiles()
    talk(scratch / "counted", counted, lambda what, number: None)
    removals = [i + 1 for i, name in enumerate(counted.done) if name == "remove"]
    assert len(removals) > 10
    for at in removals:
        root = scratch / str(at)
        told, error = talk_until_refused(root, FaultyFiles(at, fails(errno.EIO)))
        assert error is None
        check(root, **told, may_be_next=False)


def test_a_session_can_be_dropped_on_a_full_disk(tmp_path):
    """Room is made by dropping: it must not need room first."""
    talk(tmp_path, OsFiles(), lambda what, number: None)
    full = FullFiles()
    assert Sessions(tmp_path, full).drop(TENANT, SESSION)
    assert full.refused == 0
    assert Sessions(tmp_path).head(TENANT, SESSION) is None


class FullFiles(OsFiles):
    """Whatever needs blocks is refused until something was taken away."""

    def __init__(self) -> None:
        self.refused = 0
        self.removed = False

    def perform(self, path, operation, *args, **named):
        self.removed |= operation.__name__ == "remove"
        if operation.__name__ in ("create", "reserve") and not self.removed:
            self.refused += 1
            return super().perform(path, fails(errno.ENOSPC), operation, args)
        return super().perform(path, operation, *args, **named)


def test_a_write_that_fails_leaves_the_older_file_alone(tmp_path):
    target = tmp_path / "file"
    OsFiles().write_file(target, 3, [(0, b"old")])
    for at in range(1, 6):
        with pytest.raises(DiskFull):
            OsFiles.write_file(FaultyFiles(at, fails(errno.ENOSPC)), target, 3, [(0, b"new")])
        assert target.read_bytes() == b"old"
        assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_all_bytes_are_reserved_before_the_first_is_written(tmp_path):
    files = FaultyFiles()
    ObjectStore(tmp_path, files).write(source_of("block", KEY, 256))
    assert files.done.index("reserve") < files.done.index("write")
    assert files.done[-3:] == ["write", "sync", "rename"]
