"""What the system says of our files in RAM."""

import os

import pytest

from kv_tier.page_cache import is_cached, is_tight


def meminfo(tmp_path, **kib: int):
    path = tmp_path / "meminfo"
    path.write_text("".join(f"{name}: {value} kB\n" for name, value in kib.items()))
    return path


@pytest.mark.parametrize(
    ("free", "inactive", "expected"), [(50, 80, False), (50, 20, True), (0, 124, True)]
)
def test_new_pages_push_others_out_when_little_is_free_or_idle(tmp_path, free, inactive, expected):
    numbers = {"MemTotal": 1000, "MemFree": free, "Inactive(file)": inactive, "Active(file)": 700}
    assert is_tight(meminfo(tmp_path, **numbers)) is expected


def test_nothing_is_said_where_the_system_says_nothing(tmp_path):
    assert is_tight(tmp_path / "nothing") is False
    assert is_tight(meminfo(tmp_path, MemTotal=1000)) is False


def test_what_was_just_written_is_in_ram_and_what_was_dropped_is_not(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(os.urandom(1 << 20))
    fd = os.open(path, os.O_RDWR)
    try:
        if not is_cached(fd, 0, 1 << 20):
            pytest.skip("this file system does not say what it has in RAM")
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        assert not is_cached(fd, 0, 1 << 20)
        os.pread(fd, 1, 0)
        assert not is_cached(fd, 0, 1 << 20), "its end is not"
    finally:
        os.close(fd)
