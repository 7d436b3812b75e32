"""What stands between the marks of a call, read as it comes: as a JSON object, or as XML.

Of push: more text in, what was said out. state tells where it is:

    open  nobody knows yet whether it is a call     call  its name is known, its arguments come
    text  it is none                                done  complete; `rest` is what comes after
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from workers.text.tool_calls.forms import Tool, is_text

# up to where the arguments begin, in the order in which models are taught to write it
JSON_HEAD: Final = re.compile(
    r'\s*\{\s*"name"\s*:\s*"([A-Za-z0-9_-]{1,64})"\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)'
)
XML_HEAD: Final = re.compile(r"\s*<function=([A-Za-z0-9_-]{1,64})>\s*")
XML_PART: Final = re.compile(r"\s*<parameter=([^>\n]+)>\n?(.*?)\n?</parameter>\s*", re.DOTALL)
XML_END: Final = re.compile(r"\s*</function>")
HEAD_CHARS_MAX: Final = 512  # a name has 64; more is no head


@dataclass(frozen=True, slots=True)
class Call:
    """A call begins: of the function of this name."""

    name: str


@dataclass(frozen=True, slots=True)
class Arguments:
    """More of the arguments' JSON of the call that began last."""

    delta: str


class JsonBody:
    """{"name": "f", "arguments": {...}}: the arguments are passed on as the model writes them."""

    def __init__(self, tools: Mapping[str, Tool]) -> None:
        self.state, self.rest = "open", ""
        self._tools, self._head = tools, ""
        self._depth, self._in_string, self._is_escaped = 0, False, False

    def push(self, text: str) -> list[Call | Arguments]:
        if self.state == "call":
            return self._arguments(text)
        self._head += text
        match = JSON_HEAD.match(self._head)
        if match is not None and match[1] in self._tools:
            self.state = "call"
            return [Call(match[1]), *self._arguments(self._head[match.end() :])]
        start = self._head.lstrip()
        if match is not None or len(start) > HEAD_CHARS_MAX or start[:1] not in ("", "{"):
            self.state = "text"
        return []

    def _arguments(self, text: str) -> list[Call | Arguments]:
        """Up to the brace that closes what the first one opened."""
        end = len(text)
        for index, char in enumerate(text):
            self._see(char)
            if self._depth == 0:
                self.state, end = "done", index + 1
                break
        self.rest = text[end:]
        return [Arguments(text[:end])] if end else []

    def _see(self, char: str) -> None:
        if self._is_escaped:
            self._is_escaped = False
        elif self._in_string:
            self._is_escaped, self._in_string = char == "\\", char != '"'
        elif char == '"':
            self._in_string = True
        elif char in "{[":
            self._depth += 1
        elif char in "}]":
            self._depth -= 1


class XmlBody:
    """<function=f> and its parameters: each becomes JSON when it is complete."""

    def __init__(self, tools: Mapping[str, Tool]) -> None:
        self.state, self.rest = "open", ""
        self._tools, self._held, self._is_first = tools, "", True
        self._types: Mapping[str, Any] = {}

    def push(self, text: str) -> list[Call | Arguments]:
        self._held += text
        said: list[Call | Arguments] = []
        if self.state == "open" and not self._opened(said):
            return said
        while (part := XML_PART.match(self._held)) is not None:
            self._held = self._held[part.end() :]
            value = json_of(part[2], self._types.get(part[1]))
            key = json.dumps(part[1], ensure_ascii=False)
            said.append(Arguments(f"{self._comma()}{key}: {value}"))
        end = XML_END.match(self._held)
        if end is not None:
            said.append(Arguments("{}" if self._is_first else "}"))
            self.state, self.rest = "done", self._held[end.end() :]
        return said

    def _opened(self, said: list[Call | Arguments]) -> bool:
        head = XML_HEAD.match(self._held)
        if head is not None and head[1] in self._tools:
            parameters = self._tools[head[1]]["function"].get("parameters") or {}
            self._types = parameters.get("properties") or {}
            self._held = self._held[head.end() :]
            said.append(Call(head[1]))
            self.state = "call"
            return True
        start = self._held.lstrip()
        may_be = "<function=".startswith(start[:10]) and len(start) <= HEAD_CHARS_MAX
        if head is not None or not may_be:
            self.state = "text"
        return False

    def _comma(self) -> str:
        was_first, self._is_first = self._is_first, False
        return "{" if was_first else ", "


def json_of(value: str, schema: Any) -> str:
    """A parameter's value as JSON: a text as it stands, all else as the JSON that it should be."""
    if not is_text(schema):
        try:
            return json.dumps(json.loads(value), ensure_ascii=False)
        except (ValueError, RecursionError):
            pass
    return json.dumps(value, ensure_ascii=False)
