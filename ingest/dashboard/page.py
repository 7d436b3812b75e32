"""The page at /: files as they lie here, with headers that let them load nothing else.

It tells nothing by itself: what it shows comes from routes that ask for a key where one is needed.
"""

from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Final

from fastapi import APIRouter, Request
from fastapi.responses import Response

from ingest.errors import ApiError

FOLDER: Final = Path(__file__).parent / "static"
KINDS: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",
}

routes = APIRouter()


@routes.get("/")
async def page(request: Request) -> Response:
    """The dashboard."""
    return answer("index.html", request)


@routes.get("/dashboard/{name}")
async def part(name: str, request: Request) -> Response:
    """One of its files."""
    return answer(name, request)


def answer(name: str, request: Request) -> Response:
    """A file, or 304 when the browser has it. Raises ApiError 404."""
    found = files().get(name)
    if found is None:
        raise ApiError(404, f"there is no GET {request.url.path}"[:200], code="not_found")
    body, tag = found
    headers = {**HEADERS, "ETag": tag}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(body, headers=headers, media_type=KINDS[Path(name).suffix])


@cache
def files() -> dict[str, tuple[bytes, str]]:
    """What there is by name: content and entity tag, read once."""
    found = {path.name: path.read_bytes() for path in FOLDER.iterdir() if path.suffix in KINDS}
    return {name: (body, f'"{sha256(body).hexdigest()[:32]}"') for name, body in found.items()}
