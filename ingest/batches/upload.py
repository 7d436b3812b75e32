"""A file that comes as multipart/form-data, written to the disk piece by piece, with every limit.

What the body says it has is refused before a byte of it is read; what it has is counted while it
comes. Memory holds one piece of it.
"""

from dataclasses import dataclass, field
from typing import Any, BinaryIO, Final

from anyio.to_thread import run_sync
from fastapi import Request
from python_multipart import MultipartParser
from python_multipart.exceptions import MultipartParseError
from python_multipart.multipart import parse_options_header
from starlette.requests import ClientDisconnect

from ingest.errors import ApiError, refused

FORM_BYTES: Final = 64 * 1024  # of a body beside its file
VALUE_BYTES: Final = 1024  # of a field
PARTS: Final = 16
FILE_FIELD: Final = "file"


@dataclass
class Form:
    """What a body held. filename is None while no file has come."""

    fields: dict[str, str] = field(default_factory=dict)
    filename: str | None = None
    file_bytes: int = 0


class FormReader:
    """The parser's callbacks: feed() it the body, then form is whole when done is True."""

    def __init__(self, boundary: bytes, target: BinaryIO, file_bytes_max: int) -> None:
        self.form = Form()
        self.target = target
        self.file_bytes_max = file_bytes_max
        self.is_done = False
        self.num_parts = 0
        self.header: tuple[bytearray, bytearray] = (bytearray(), bytearray())
        self.disposition = b""
        self.name = ""
        self.value = bytearray()
        self.parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self.part_begins,
                "on_header_field": lambda data, a, b: self.header[0].extend(data[a:b]),
                "on_header_value": lambda data, a, b: self.header[1].extend(data[a:b]),
                "on_header_end": self.header_ends,
                "on_headers_finished": self.headers_end,
                "on_part_data": self.part_data,
                "on_part_end": self.part_ends,
                "on_end": self.ends,
            },
        )

    def feed(self, piece: bytes) -> None:
        """Raises ApiError."""
        try:
            self.parser.write(piece)
        except MultipartParseError as error:
            raise no_form(str(error)) from None

    def part_begins(self) -> None:
        self.num_parts += 1
        if self.num_parts > PARTS:
            raise no_form(f"more than {PARTS} parts")
        self.disposition, self.value = b"", bytearray()

    def header_ends(self) -> None:
        name, value = self.header
        if bytes(name).lower() == b"content-disposition":
            self.disposition = bytes(value)
        self.header = (bytearray(), bytearray())

    def headers_end(self) -> None:
        _, options = parse_options_header(self.disposition)
        self.name = options.get(b"name", b"").decode(errors="replace")
        if self.name == FILE_FIELD:
            if self.form.filename is not None:
                raise no_form("more than one file")
            self.form.filename = options.get(b"filename", b"").decode(errors="replace")[:255]

    def part_data(self, data: bytes, begin: int, end: int) -> None:
        if self.name == FILE_FIELD:
            self.form.file_bytes += end - begin
            if self.form.file_bytes > self.file_bytes_max:
                raise too_large(self.file_bytes_max)
            self.target.write(data[begin:end])
            return
        self.value += data[begin:end]
        if len(self.value) > VALUE_BYTES:
            raise refused(self.name[:64], f"must have at most {VALUE_BYTES} bytes")

    def part_ends(self) -> None:
        if self.name != FILE_FIELD:
            self.form.fields[self.name] = self.value.decode(errors="replace")

    def ends(self) -> None:
        self.is_done = True


async def read_form(request: Request, target: Any, file_bytes_max: int) -> Form:
    """Writes the body's file into `target`; gives its other fields. Raises ApiError."""
    declared = request.headers.get("content-length", "0")
    if not declared.isdigit() or int(declared) > file_bytes_max + FORM_BYTES:
        raise too_large(file_bytes_max)
    reader = FormReader(boundary_of(request), target, file_bytes_max)
    num_bytes = 0
    try:
        async for piece in request.stream():
            num_bytes += len(piece)
            if num_bytes > file_bytes_max + FORM_BYTES:
                raise too_large(file_bytes_max)
            await run_sync(reader.feed, piece)
    except ClientDisconnect:
        raise ApiError(499, "the client left before its file was complete") from None
    if not reader.is_done:
        raise no_form("it ends before its last boundary")
    if reader.form.filename is None:
        raise refused(FILE_FIELD, "is required")
    return reader.form


def boundary_of(request: Request) -> bytes:
    kind, options = parse_options_header(request.headers.get("content-type", ""))
    boundary = options.get(b"boundary", b"")
    if kind != b"multipart/form-data" or not 1 <= len(boundary) <= 256:
        raise no_form("its Content-Type is not multipart/form-data with a boundary")
    return boundary


def no_form(why: str) -> ApiError:
    return ApiError(400, f"the body is no form with a file: {why}", code="bad_request")


def too_large(file_bytes_max: int) -> ApiError:
    limit = f"{file_bytes_max >> 20} MiB"
    return ApiError(413, f"file: is larger than {limit}", param=FILE_FIELD, code="file_too_large")
