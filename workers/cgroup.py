"""What this process may use of the machine: the limits of its container, pod or unit (cgroup v2).

A limit of any group above it counts as well. Where there are no such groups, there is no limit.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path("/sys/fs/cgroup")
OWN: Final = Path("/proc/self/cgroup")
NO_LIMIT: Final = "max"


def memory_limit(root: Path = ROOT, own: Path = OWN) -> int | None:
    """Bytes; None: no limit."""
    said = [int(words[0]) for words in told("memory.max", root, own) if words[0] != NO_LIMIT]
    return min(said, default=None)


def core_limit(root: Path = ROOT, own: Path = OWN) -> int | None:
    """Cores that may be busy all the time, at least one; None: no limit.

    A group's quota is "MICROSECONDS PERIOD", and throttles all of its threads at once.
    """
    said = [
        max(1, int(words[0]) // int(words[1]))
        for words in told("cpu.max", root, own)
        if words[0] != NO_LIMIT
    ]
    return min(said, default=None)


def told(name: str, root: Path, own: Path) -> Iterator[list[str]]:
    """The words of the file of this name, of our group and of each one above it that has it."""
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return
    path = next((line[3:] for line in lines if line.startswith("0::")), None)
    if path is None or ".." in path:  # a group outside of what we see
        return
    folder = root / path.strip("/")
    for group in (folder, *folder.parents):
        if not group.is_relative_to(root):
            return
        try:
            words = (group / name).read_text().split()
        except OSError:
            continue
        if words:
            yield words
