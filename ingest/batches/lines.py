"""The input of a batch: one request a line, looked through whole before any of it runs.

    {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {...}}

What a body asks for is looked at when its turn comes: what is wrong with one becomes its row of the
error file. What is wrong with a line itself is a fault of the file, and then nothing runs.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgspec
import xxhash

from ingest.access.limits import check_json
from ingest.batches.record import Fault
from ingest.errors import ApiError
from router.entry import BODY_BYTES_MAX

LINES_MAX: Final = 50_000
FAULTS_MAX: Final = 100  # told at once
CUSTOM_ID_MAX: Final = 512  # characters


class Line(msgspec.Struct, frozen=True):
    """One request of a batch."""

    custom_id: str
    method: str
    url: str
    body: dict[str, Any]


def numbered(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Each line that is not empty with its number, from 1; of one too long only its beginning."""
    number = 0
    while raw := file.readline(BODY_BYTES_MAX + 2):
        number += 1
        cut = raw
        while len(raw) > BODY_BYTES_MAX and not raw.endswith(b"\n"):
            raw = file.readline(BODY_BYTES_MAX + 2)
        if cut.strip():
            yield number, cut


def parse(raw: bytes, number: int, endpoint: str) -> Line | Fault:
    """The request in a line, or what is wrong with it."""
    if len(raw) > BODY_BYTES_MAX + 1:
        message = f"the line is longer than {BODY_BYTES_MAX >> 20} MiB"
        return Fault("line_too_long", message, number)
    try:
        check_json(raw)
        line = msgspec.json.decode(raw, type=Line)
    except ApiError as error:
        return Fault("invalid_json_line", error.message, number)
    except msgspec.ValidationError as error:
        return Fault("invalid_request", f"the line is no request: {error}", number)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return Fault("invalid_json_line", f"the line is not JSON: {error}", number)
    if not 1 <= len(line.custom_id) <= CUSTOM_ID_MAX:
        message = f"custom_id: must have 1 to {CUSTOM_ID_MAX} characters"
        return Fault("invalid_custom_id", message, number, "custom_id")
    if line.method != "POST":
        return Fault("invalid_method", "method: must be POST", number, "method")
    if line.url != endpoint:
        message = f"url: must be {endpoint}, the batch's endpoint"
        return Fault("mismatched_url", message, number, "url")
    return line


def look_through(path: Path, endpoint: str) -> tuple[int, str | None, list[Fault]]:
    """How many requests a file holds, the model of the first, and its faults: the first hundred.

    Holds 16 bytes a line, whatever the lines are.
    """
    total, model, seen, faults = 0, None, set[bytes](), list[Fault]()
    with path.open("rb") as file:
        for number, raw in numbered(file):
            line = parse(raw, number, endpoint)
            total += 1
            if isinstance(line, Line):
                named = line.body.get("model")
                model = model or (named if isinstance(named, str) else None)
                key = xxhash.xxh3_128_digest(line.custom_id.encode())
                if key in seen:
                    message = "custom_id: another line has the same one"
                    line = Fault("duplicate_custom_id", message, number, "custom_id")
                seen.add(key)
            if isinstance(line, Fault):
                faults.append(line)
            if total > LINES_MAX:
                faults.append(Fault("too_many_lines", f"more than {LINES_MAX} requests", number))
            if total > LINES_MAX or len(faults) >= FAULTS_MAX:
                break
    if not total:
        faults.append(Fault("empty_file", "the file holds no request"))
    return total, model, faults
