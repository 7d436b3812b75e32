"""A control token's text inside a client's message stays text.

Before the template runs, every such text is broken: a mark, one character that the messages do
not hold, is put around and between its characters. What still reads as a control token in the
rendered text was written by the template itself; there it is cut, and the mark is taken out of the
pieces.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from workers.text.template import TemplateError

PRIVATE_USE: Final = range(0xF0000, 0xFFFFE)  # characters that mean nothing to anybody


def unused_mark(messages: Sequence[Mapping[str, Any]]) -> str:
    """A character that occurs nowhere in the messages. Raises TemplateError if they hold all."""
    used = set(json.dumps(messages, ensure_ascii=False, default=str))
    for code in PRIVATE_USE:
        if chr(code) not in used:
            return chr(code)
    raise TemplateError("the messages hold every private-use character")


def break_control(value: Any, control: re.Pattern[str] | None, mark: str) -> Any:
    """The same value, keys and nested strings too, each text that control matches broken."""
    if control is None:
        return value
    if isinstance(value, str):
        # around it as well: no other control text may begin or end inside this one
        return control.sub(lambda match: mark + mark.join(match[0]) + mark, value)
    if isinstance(value, Mapping):
        return {
            break_control(key, control, mark): break_control(item, control, mark)
            for key, item in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [break_control(item, control, mark) for item in value]
    return value


def any_of(texts: Iterable[str]) -> re.Pattern[str] | None:
    """An expression for any of the texts, longer ones first; None for no texts."""
    ordered = sorted(texts, key=len, reverse=True)
    return re.compile(f"({'|'.join(map(re.escape, ordered))})") if ordered else None


def cut(pattern: re.Pattern[str] | None, text: str) -> Iterator[tuple[str, bool]]:
    """The pieces of text in order, each with whether the pattern matched it; no empty ones."""
    pieces = [text] if pattern is None else pattern.split(text)
    for index, piece in enumerate(pieces):
        if piece:
            yield piece, index % 2 == 1
