"""What is in a file of the tier, and is it whole?

python -m kv_tier.dump PATH [--json]
"""

from pathlib import Path
from typing import Any


def describe(path: Path) -> dict[str, Any]:
    """What an object's or a manifest's header and records say, by FORMAT.md's names.

    Raises CorruptFile, NewerVersion, DiskError, Missing.
    """
    raise NotImplementedError


def verify_file(path: Path) -> None:
    """Read every byte of it and hold it to its checksums and to its name.

    Raises CorruptFile, NewerVersion, DiskError, Missing.
    """
    raise NotImplementedError
