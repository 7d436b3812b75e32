"""What a stream entry says: the msgpack map under `m`, or plain fields as written with redis-cli.

    XADD lockstep:requests:standard * m <msgpack map>
    XADD lockstep:requests:standard * prompt "Hello" max_tokens 16 webhook_url https://...

Bytes that are not UTF-8 become lone surrogates here; admit refuses them and names the field.
"""

import json
from collections.abc import Mapping
from typing import Any, Final

import msgpack

from router.refusal import Refused, shown
from router.sampling import RANGES

BODY_BYTES_MAX: Final = 4 * 2**20  # of a whole request, by either door

NUMBERS: Final = (
    *RANGES,
    "logprobs",
    "top_logprobs",
    "v",
    "n",
    "best_of",
    "deadline_ms",
    "max_tokens",
    "max_completion_tokens",
)
JSON_FIELDS: Final = (
    *("messages", "chat_template_kwargs", "token_ids", "metadata", "echo"),
    *("tools", "functions", "response_format", "logit_bias", "parallel_tool_calls"),
)
TEXT_OR_JSON: Final = ("stop", "tool_choice")  # JSON if it begins like a list, a text or a map


def read_entry(entry: Mapping[bytes, bytes]) -> tuple[dict[str, Any], bool]:
    """The fields of a stream entry, and whether they are plain strings.

    Raises Refused for what is too large or no msgpack map.
    """
    size = sum(len(key) + len(value) for key, value in entry.items())
    if size > BODY_BYTES_MAX:
        refusal = f"must have at most {BODY_BYTES_MAX} bytes in all, got {size}"
        raise Refused("request", refusal, "request_too_large")
    if b"m" not in entry:
        return {text(key): text(value) for key, value in entry.items()}, True
    fields = unpack(entry[b"m"])
    if not isinstance(fields, dict):
        raise Refused("m", f"must be a msgpack map, got {shown(fields)}", "undecodable")
    return fields, False


def unpack(body: bytes) -> Any:
    try:
        return msgpack.unpackb(body, unicode_errors="surrogateescape", strict_map_key=False)
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        why = str(error) or type(error).__name__
        raise Refused(
            "m", f"must be a msgpack map and cannot be decoded: {why}", "undecodable"
        ) from error


def text(value: bytes) -> str:
    return value.decode(errors="surrogateescape")


def from_strings(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Plain fields with the values that a msgpack map would have: numbers, and JSON."""
    return {name: from_string(name, str(value)) for name, value in fields.items()}


def from_string(name: str, value: str) -> Any:
    """logprobs may be a number or true; stop a plain string or JSON."""
    if name in JSON_FIELDS:
        return parse_json(name, value)
    if name == "logprobs" and value in ("true", "false"):
        return value == "true"
    if name in NUMBERS:
        return parse_number(value)
    if name == "webhook" or (name in TEXT_OR_JSON and value.startswith(("[", '"', "{"))):
        return parse_json(name, value)
    return value


def parse_number(value: str) -> Any:
    """An int or a float; what is neither stays a string, for admit to refuse with the range."""
    for kind in (int, float):
        try:
            if "_" not in value:
                return kind(value)
        except ValueError:
            pass
    return value


def parse_json(name: str, value: str) -> Any:
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        why = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise Refused(name, f"must be JSON: {why}") from None
