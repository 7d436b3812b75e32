"""A file of a batch's results, one row a line: what clients read is the record of what is done.

    {"id": "batch_req_ID-LINE", "custom_id": "a",
     "response": {"status_code": 200, "request_id": "...", "body": {...}}, "error": null}

A row is there whole or not at all. So whoever goes on after a crash reads which lines have one,
cuts off what a power loss tore, and writes none twice.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

TAIL_BYTES: Final = 64 * 1024
encode: Final = msgspec.json.Encoder().encode


class Usage(msgspec.Struct):
    """Tokens, by the names that OpenAI's APIs have for them."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    prompt_tokens_details: dict[str, Any] | None = None
    input_tokens_details: dict[str, Any] | None = None

    @property
    def counts(self) -> tuple[int, int, int]:
        """Of the prompt, of those the cached ones, of the output."""
        details = self.prompt_tokens_details or self.input_tokens_details or {}
        output = self.completion_tokens or self.output_tokens
        return self.prompt_tokens or self.input_tokens, details.get("cached_tokens") or 0, output


class Body(msgspec.Struct):
    usage: Usage | None = None


class Answer(msgspec.Struct):
    body: Body


class Row(msgspec.Struct):
    """As much of a row as counts."""

    id: str
    response: Answer | None = None

    @property
    def line(self) -> int:
        """The number of its line, from 1. Raises ValueError for a row that is none of ours."""
        return int(self.id.rpartition("-")[2])

    @property
    def usage(self) -> Usage | None:
        return self.response.body.usage if self.response else None


def row_id(batch_id: str, number: int) -> str:
    return f"batch_req_{batch_id.removeprefix('batch_')}-{number}"


class Rows:
    """One file of rows, open for adding to it. recover() comes first, of a file that was there."""

    def __init__(self, path: Path) -> None:
        self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        self.size = 0

    def recover(self) -> Iterator[Row]:
        """All rows that are there; what follows the last whole one is cut off."""
        with os.fdopen(os.dup(self.descriptor), "rb") as file:
            file.seek(0)
            for raw in file:
                row = parsed(raw)
                if row is None:
                    break
                self.size += len(raw)
                yield row
        os.ftruncate(self.descriptor, self.size)

    def add(self, row: dict[str, Any]) -> Row:
        """Gives the row as recover() would. Raises OSError, and then nothing of it is there."""
        raw = encode(row) + b"\n"
        try:
            written = 0
            while written < len(raw):
                written += os.write(self.descriptor, raw[written:])
        except OSError:
            os.ftruncate(self.descriptor, self.size)
            raise
        self.size += len(raw)
        kept = parsed(raw)
        assert kept is not None, raw[:200]
        return kept

    def close(self) -> None:
        """On the disk when this returns."""
        os.fsync(self.descriptor)
        os.close(self.descriptor)


def parsed(raw: bytes) -> Row | None:
    """The row in a line; None when it is torn, or none."""
    try:
        row = msgspec.json.decode(raw, type=Row)
        return row if raw.endswith(b"\n") and row.line > 0 else None
    except (msgspec.DecodeError, ValueError):
        return None


def whole_rows_end(path: Path) -> int:
    """The bytes of a growing file up to the end of its last whole row."""
    with path.open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        while end > 0:
            begin = max(0, end - TAIL_BYTES)
            file.seek(begin)
            found = file.read(end - begin).rfind(b"\n")
            if found >= 0:
                return begin + found + 1
            end = begin
    return 0
