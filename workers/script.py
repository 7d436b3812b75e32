"""The text of a Lua script, what it is called with, and what it says."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

LUA: Final = Path(__file__).parent / "lua"
Value = str | bytes | int | float
Fields = Mapping[str, str | int | bytes]


def script_text(name: str) -> str:
    """The script with the files of its `-- include NAME` lines in their places."""
    lines = (LUA / f"{name}.lua").read_text().splitlines()
    return "\n".join(
        script_text(line.removeprefix("-- include ")) if line.startswith("-- include ") else line
        for line in lines
    )


def flat(fields: Fields) -> list[Value]:
    """Fields as scripts take them: name, value, name, value, ..."""
    return [item for pair in fields.items() for item in pair]


def text(reply: bytes) -> str:
    return reply.decode()


def texts(reply: list[bytes]) -> list[str]:
    return [item.decode() for item in reply]
