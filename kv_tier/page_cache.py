"""What the system keeps of our files in RAM, as far as it tells."""

import os
from pathlib import Path
from typing import Final

TIGHT_SHARE: Final = 8  # less than an eighth of the machine's RAM left to give: new pages push


def is_cached(fd: int, begin: int, num_bytes: int) -> bool:
    """Whether begin, middle and end of this part of a file are in RAM; a sample, never a wait."""
    assert num_bytes > 0, num_bytes
    places = (begin, begin + num_bytes // 2, begin + num_bytes - 1)
    return all(_is_byte_cached(fd, place) for place in places)


def is_tight(meminfo: Path = Path("/proc/meminfo")) -> bool:
    """Whether pages that are written now would push out pages in use: of weights, say."""
    try:
        lines = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
        total, free, inactive = (
            int(lines[name].split()[0]) for name in ("MemTotal", "MemFree", "Inactive(file)")
        )
    except (OSError, KeyError, ValueError):
        return False
    return free + inactive < total // TIGHT_SHARE


def _is_byte_cached(fd: int, place: int) -> bool:
    try:
        return os.preadv(fd, [bytearray(1)], place, os.RWF_NOWAIT) == 1
    except OSError:
        return False  # EAGAIN: it is on the disk only; or a file system that does not say
