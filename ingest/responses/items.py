"""Items of the Responses API as messages of a conversation, and back.

    message                 {"role", "content"}
    function_call           the tool_calls of an assistant message; those that follow each other, or
                            what was said before them, are one message
    function_call_output    {"role": "tool", "tool_call_id", "content"}
    reasoning               nothing: thoughts are not repeated to a model

What is wrong is refused by its path: input[2].content[0].
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from ingest.errors import refused
from ingest.shapes import Json

ROLES: Final = ("user", "assistant", "system", "developer")
TEXTS: Final = ("input_text", "output_text", "text")
ONLY_TEXT: Final = "text alone is offered, no images, files or audio"


def input_items(given: Any) -> list[Json]:
    """What `input` holds, as a list of items. Raises ApiError."""
    if isinstance(given, str):
        return [{"type": "message", "role": "user", "content": given}]
    if not isinstance(given, list) or not given:
        raise refused("input", "must be a text or a list of items")
    for index, item in enumerate(given):
        if not isinstance(item, dict):
            raise refused(f"input[{index}]", "must be an object")
    return given


def messages_of(items: Sequence[Json], path: str = "input") -> list[Json]:
    """The conversation that they are. Raises ApiError that names the item."""
    messages: list[Json] = []
    for index, item in enumerate(items):
        for message in _messages(item, f"{path}[{index}]"):
            last = messages[-1] if messages else {}
            if "tool_calls" in message and last.get("role") == "assistant":
                last["tool_calls"] = [*last.get("tool_calls", []), *message["tool_calls"]]
            else:
                messages.append(message)
    return messages


def _messages(item: Json, path: str) -> Iterator[Json]:
    kind = item.get("type", "message")
    if kind == "message":
        role = item.get("role")
        if role not in ROLES:
            raise refused(f"{path}.role", f"must be one of {', '.join(ROLES)}, got {role!r}")
        yield {"role": role, "content": text_of(item.get("content"), f"{path}.content")}
    elif kind == "function_call":
        call_id, name = _text(item, "call_id", path), _text(item, "name", path)
        function = {"name": name, "arguments": _text(item, "arguments", path)}
        call = {"id": call_id, "type": "function", "function": function}
        yield {"role": "assistant", "content": None, "tool_calls": [call]}
    elif kind == "function_call_output":
        content = text_of(item.get("output"), f"{path}.output")
        yield {
            "role": "tool",
            "tool_call_id": _text(item, "call_id", path),
            "content": content,
        }
    elif kind != "reasoning":
        allowed = "message, function_call, function_call_output and reasoning are offered"
        raise refused(f"{path}.type", f"{allowed}, not {kind!r}")


def text_of(content: Any, path: str) -> str:
    """A text, or a list of parts that are text."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise refused(path, "must be a text or a list of parts")
    return "".join(_part(part, f"{path}[{index}]") for index, part in enumerate(content))


def _part(part: Any, path: str) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind == "refusal":
        return _text(part, "refusal", path)
    if kind not in TEXTS:
        raise refused(path, f"{ONLY_TEXT}; got {kind!r}")
    return _text(part, "text", path)


def _text(item: Mapping[str, Any], name: str, path: str) -> str:
    value = item.get(name)
    if not isinstance(value, str):
        raise refused(f"{path}.{name}", "must be a text")
    return value
