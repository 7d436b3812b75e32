"""A container's limits are the machine: of memory, of cores, of all groups above it."""

from pathlib import Path

import pytest

from workers.cgroup import core_limit, memory_limit
from workers.engine.limits import machine_bytes
from workers.settings import Settings

GIB = 1 << 30


@pytest.fixture
def groups(tmp_path):
    """A function that lays out groups: {path: {file: text}}; gives what the two functions take."""

    def lay_out(own: str, files: dict[str, dict[str, str]]) -> tuple[Path, Path]:
        for path, told in files.items():
            folder = tmp_path / "groups" / path
            folder.mkdir(parents=True, exist_ok=True)
            for name, text in told.items():
                (folder / name).write_text(text)
        (tmp_path / "own").write_text(own)
        return tmp_path / "groups", tmp_path / "own"

    return lay_out


def test_the_smallest_limit_on_the_way_up_counts(groups):
    told = groups(
        "9:name=systemd:/\n0::/pods/node\n",
        {
            "pods": {"memory.max": f"{8 * GIB}\n", "cpu.max": "max 100000\n"},
            "pods/node": {"memory.max": f"{16 * GIB}\n", "cpu.max": "250000 100000\n"},
        },
    )
    assert memory_limit(*told) == 8 * GIB
    assert core_limit(*told) == 2


def test_a_container_sees_its_own_group_as_the_root(groups):
    told = groups("0::/\n", {".": {"memory.max": f"{GIB}\n", "cpu.max": "50000 100000\n"}})
    assert memory_limit(*told) == GIB
    assert core_limit(*told) == 1, "half a core is one thread"


@pytest.mark.parametrize(
    ("own", "files"),
    [
        ("0::/\n", {".": {"memory.max": "max\n", "cpu.max": "max 100000\n"}}),
        ("0::/\n", {".": {}}),
        ("0::/../elsewhere\n", {".": {"memory.max": "1\n", "cpu.max": "1 1\n"}}),
        ("4:memory:/old\n", {".": {"memory.max": "1\n", "cpu.max": "1 1\n"}}),
    ],
    ids=["unlimited", "root of a machine", "outside", "version 1"],
)
def test_no_limit_is_none(groups, own, files):
    told = groups(own, files)
    assert memory_limit(*told) is None and core_limit(*told) is None


def test_a_machine_without_groups_has_no_limit(tmp_path):
    assert memory_limit(tmp_path, tmp_path / "none") is None


def test_memory_and_threads_that_nobody_set_keep_to_the_limits(monkeypatch):
    monkeypatch.setattr("workers.engine.limits.memory_limit", lambda: 2 * GIB)
    monkeypatch.setattr("workers.settings.core_limit", lambda: 1)
    assert machine_bytes() == 2 * GIB
    assert Settings().num_threads == 1
    assert Settings(threads=7).num_threads == 7
