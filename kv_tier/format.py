"""The bytes of the tier's files: FORMAT.md is the law, and these are its names."""

import re
import sys
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal

KEY_BYTES: Final = 32
PAGE_BYTES: Final = 4096
PIECE_BYTES: Final = 1 << 20  # of payload under one checksum
SUM_BYTES: Final = 16

Kind = Literal["block", "tail", "state"]
KINDS: Final[tuple[Kind, ...]] = ("block", "tail", "state")  # 1, 2, 3 in a header
TENANT: Final = re.compile(r"[a-z0-9]{1,32}")
SESSION_ID: Final = re.compile(r"(?!.*--)[A-Za-z0-9_-]{1,64}")

assert sys.byteorder == "little" and array("i").itemsize == 4, "the formats are little-endian"


class CorruptFile(Exception):
    """A file that is not what it should be. Nothing of it may be used."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


class NewerVersion(CorruptFile):
    """A sound file of a format version that this build does not know."""

    def __init__(self, path: Path, version: int, known: int) -> None:
        super().__init__(path, f"format version {version}; this build reads up to {known}")
        self.version = version


def is_tenant(name: str) -> bool:
    """A name, not a path: it may become a folder."""
    return TENANT.fullmatch(name) is not None


def is_session_id(name: str) -> bool:
    """A name, not a path: it may become a folder."""
    return SESSION_ID.fullmatch(name) is not None


def token_bytes(token_ids: Sequence[int]) -> bytes:
    """int32, little-endian. Raises OverflowError for what is no token id."""
    return array("i", token_ids).tobytes()
