"""A page of a list in OpenAI's shape, and the numbers by which one is asked for."""

from collections.abc import Sequence
from typing import Any

from ingest.errors import refused


def page_of(objects: Sequence[dict[str, Any]], limit: int) -> dict[str, Any]:
    """At most `limit` of them; one more says that there are more."""
    data = objects[:limit]
    return {
        "object": "list",
        "data": data,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
        "has_more": len(objects) > limit,
    }


def whole_number(name: str, given: Any, low: int, high: int) -> int:
    """A whole number in a range, also as text. Raises ApiError that names it."""
    text = str(given) if isinstance(given, int | str) and not isinstance(given, bool) else ""
    is_number = text.isascii() and text.isdigit() and len(text) < 10
    if not is_number or not low <= int(text) <= high:
        sentence = f"must be an integer from {low} to {high}, got {str(given)[:40]!r}"
        raise refused(name, sentence)
    return int(text)
