"""Why a request is refused: the exception of the parsers under admit, and how a value is shown."""

from typing import Any, Final

SHOWN_CHARS: Final = 60


class Refused(Exception):
    """One field is not what it must be. Caught in admit and in the router's loop, nowhere else.

    field   name or path of the field: "max_tokens", "messages[2].content"
    reason  a whole sentence that begins with the field
    """

    def __init__(self, field: str, reason: str, code: str = "bad_request") -> None:
        super().__init__(f"{field}: {reason}")
        self.field = field
        self.reason = f"{field}: {reason}"
        self.code = code


def shown(value: Any) -> str:
    """A value in few words, whatever it is: long ones are cut, and nothing raises."""
    if isinstance(value, str):
        return repr(value) if len(value) <= SHOWN_CHARS else repr(value[:SHOWN_CHARS]) + "..."
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int):  # the digits of a huge one would take Python minutes
        return str(value) if abs(value) < 2**70 else "a number beyond 64 bits"
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, bytes):
        return f"{len(value)} bytes"
    if isinstance(value, list | tuple):
        return "an empty list" if not value else f"a list of {len(value)}"
    return "a map" if isinstance(value, dict) else f"a {type(value).__name__}"


def text_of(field: str, value: Any) -> str:
    """The value, if it is a string of valid Unicode.

    Lone surrogates are what entry.py makes of bytes that are not UTF-8.
    """
    if not isinstance(value, str):
        raise Refused(field, f"must be a string, got {shown(value)}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise Refused(
            field, f"must be valid UTF-8, and is not at character {error.start}"
        ) from None
    return value
