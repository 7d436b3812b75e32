r"""From the text of an answer, as it comes, to text and calls.

    "It is <tool_c"         Text "It is "              what may become a mark is held back
    "all>\n{"name": "f"
    ", "arguments": {"a"    Call f, Arguments '{"a"'
    : 1}}\n</tool_call>"    Arguments ': 1}'

What turns out to be no call is text again. However the text is cut, the joined pieces are the same.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from workers.text.tool_calls.bodies import Arguments, Call, JsonBody, XmlBody
from workers.text.tool_calls.forms import BEGIN, END, Tool

CLOSING: Final = {  # what may stand between the arguments and the end mark, or the next call
    "hermes": re.compile(r"\s*\}?\s*"),
    "xml": re.compile(r"\s*"),
    "llama": re.compile(r"\s*\}?[\s;]*"),
}


@dataclass(frozen=True, slots=True)
class Text:
    text: str


Said = Text | Call | Arguments


class CallReader:
    """Reads one answer. form, tools: as the request has them; other tools' names are text."""

    def __init__(self, form: str, tools: Sequence[Tool]) -> None:
        self._form = form
        self._tools: Mapping[str, Tool] = {tool["function"]["name"]: tool for tool in tools}
        self._mark = "" if form == "llama" else BEGIN
        self._held = ""
        self._body: JsonBody | XmlBody | None = None
        self._is_closing = self._is_plain = self._has_called = False

    def push(self, text: str) -> Iterator[Said]:
        """What is said by more of the answer."""
        self._held += text
        while self._held:
            was = len(self._held), self._body, self._is_closing
            yield from self._step()
            if (len(self._held), self._body, self._is_closing) == was:
                return

    def flush(self) -> Iterator[Said]:
        """What was held back, at the end: text, or the end of a call that is complete."""
        if self._body is not None and self._body.state == "open":
            yield Text(self._mark + self._held)
        elif self._body is None and not self._is_closing and self._counts(self._held):
            yield Text(self._held)
        self._held = ""

    def _step(self) -> Iterator[Said]:
        if self._is_closing:
            self._close()
        elif self._body is not None:
            yield from self._call(self._body)
        elif self._is_plain:
            yield Text(self._held)
            self._held = ""
        elif self._form == "llama":
            self._begin_llama()
        else:
            yield from self._text()

    def _text(self) -> Iterator[Said]:
        """Up to a mark. Space behind a call is nobody's text, unless more follows."""
        before, mark, after = self._held.partition(BEGIN)
        if mark:
            self._begin(after)
        else:
            cut = len(before) - _num_held(before)
            before, self._held = before[:cut], before[cut:]
            if not self._counts(before):
                self._held = before + self._held
                return
        if self._counts(before):
            yield Text(before)

    def _counts(self, text: str) -> bool:
        return bool(text.strip() if self._has_called else text)

    def _begin(self, after: str) -> None:
        self._body = (XmlBody if self._form == "xml" else JsonBody)(self._tools)
        self._held = after
        self._num_pushed = 0

    def _begin_llama(self) -> None:
        """A call stands at the beginning, or directly behind another."""
        start = self._held.lstrip()
        if start[:1] == "{":
            self._begin(self._held)
        elif start:
            self._is_plain = True

    def _call(self, body: JsonBody | XmlBody) -> Iterator[Said]:
        """held is all of the call while it may be text again, and then what is still to be read."""
        if body.state == "open":
            new, self._num_pushed = self._held[self._num_pushed :], len(self._held)
        else:
            new, self._held = self._held, ""
        said = body.push(new)
        if body.state == "text":
            self._body = None
            yield Text(self._mark or self._held)
            self._is_plain = not self._mark
            self._held = self._held if self._mark else ""
            return
        yield from said
        if body.state == "open":
            return
        self._held, self._has_called = "", True
        if body.state == "done":
            self._body, self._is_closing, self._held = None, True, body.rest

    def _close(self) -> None:
        """Over the rest of a call, up to its end mark if it has one."""
        match = CLOSING[self._form].match(self._held)
        assert match is not None, "it matches nothing at all, too"
        rest = self._held[match.end() :]
        if not self._mark:
            self._is_closing, self._held = not rest, rest
        elif rest.startswith(END):
            self._is_closing, self._held = False, rest[len(END) :]
        elif not END.startswith(rest):
            self._is_closing, self._held = False, rest


def _num_held(text: str) -> int:
    """Length of the longest end of text that begins the mark."""
    longest = min(len(text), len(BEGIN) - 1)
    return next((n for n in range(longest, 0, -1) if BEGIN.startswith(text[-n:])), 0)
