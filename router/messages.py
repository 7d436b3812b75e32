"""The messages of a conversation: each as chat templates expect it, checked field by field.

role            system (developer is its newer name), user, assistant, tool (function: older)
content         a text, or a list of text parts; of an assistant that calls tools also null
tool_calls      of an assistant; their arguments are JSON on the wire, an object in a template
"""

import json
from collections.abc import Mapping
from typing import Any, Final

from router.fields import check_json
from router.refusal import Refused, shown, text_of
from workers.text.text_model import TextModel

ROLES: Final = ("system", "developer", "user", "assistant", "tool", "function")
RENAMED: Final = {"developer": "system", "function": "tool"}
BYTES_PER_TOKEN_MAX: Final = 32  # no text has more bytes than this for each token of the context
ARGUMENTS_DEPTH_MAX: Final = 64
CALLS_MAX: Final = 128  # of one message

Message = dict[str, Any]


def messages_of(value: Any, text: TextModel) -> list[Message]:
    """A conversation as the chat API has it."""
    if not isinstance(value, list | tuple) or not value:
        raise Refused("messages", f"must be a list of at least one message, got {shown(value)}")
    if len(value) >= text.context_length:
        raise Refused("messages", f"must be fewer than {text.context_length}, got {len(value)}")
    messages = [message(f"messages[{index}]", item) for index, item in enumerate(value)]
    fits("messages", sum(map(num_bytes, messages)), text)
    return messages


def message(field: str, value: Any) -> Message:
    """One message, with what templates know of it and nothing else."""
    if not isinstance(value, Mapping):
        raise Refused(field, f"must be a map with role and content, got {shown(value)}")
    role = value.get("role")
    if role not in ROLES:
        raise Refused(f"{field}.role", f"must be one of {', '.join(ROLES)}, got {shown(role)}")
    result: Message = {"role": RENAMED.get(role, role)}
    calls = calls_of(field, value) if role == "assistant" else []
    content = value.get("content")
    is_silent = content is None and bool(calls)
    result["content"] = "" if is_silent else content_of(f"{field}.content", content)
    if calls:
        result["tool_calls"] = calls
    for name in ("name", "tool_call_id", "reasoning_content"):
        if value.get(name) is not None:
            result[name] = text_of(f"{field}.{name}", value[name])
    if value["role"] == "tool" and "tool_call_id" not in result:
        raise Refused(f"{field}.tool_call_id", "is required: the id of the call that it answers")
    return result


def calls_of(field: str, value: Mapping[str, Any]) -> list[Message]:
    """The calls of an assistant's message."""
    if value.get("function_call") is not None:
        raise Refused(f"{field}.function_call", "is not offered; use tool_calls")
    calls = value.get("tool_calls")
    if calls is None:
        return []
    if not isinstance(calls, list | tuple) or len(calls) > CALLS_MAX:
        allowed = f"must be a list of at most {CALLS_MAX} calls"
        raise Refused(f"{field}.tool_calls", f"{allowed}, got {shown(calls)}")
    return [call_of(f"{field}.tool_calls[{index}]", call) for index, call in enumerate(calls)]


def call_of(field: str, value: Any) -> Message:
    if not isinstance(value, Mapping) or not isinstance(value.get("function"), Mapping):
        raise Refused(field, f"must be a map with id, type and function, got {shown(value)}")
    if value.get("type", "function") != "function":
        raise Refused(f"{field}.type", f"must be 'function', got {shown(value['type'])}")
    function = value["function"]
    name = text_of(f"{field}.function.name", function.get("name"))
    arguments = arguments_of(f"{field}.function.arguments", function.get("arguments"))
    call: Message = {"type": "function", "function": {"name": name, "arguments": arguments}}
    if value.get("id") is not None:
        call["id"] = text_of(f"{field}.id", value["id"])
    return call


def arguments_of(field: str, value: Any) -> Message:
    """An object, as JSON or as it is; a model that was cut off in its arguments has said none."""
    if isinstance(value, Mapping):
        check_json(field, value, ARGUMENTS_DEPTH_MAX)
        return dict(value)
    written = text_of(field, value)
    try:
        arguments = json.loads(written) if written.strip() else {}
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        raise Refused(field, f"must be a JSON object, got {shown(written)}")
    return arguments


def content_of(field: str, value: Any) -> str:
    """A string, or a list of text parts, which are joined."""
    if isinstance(value, list | tuple):
        return "".join(part_of(f"{field}[{index}]", part) for index, part in enumerate(value))
    if not isinstance(value, str):
        raise Refused(field, f"must be a string or a list of text parts, got {shown(value)}")
    return text_of(field, value)


def part_of(field: str, value: Any) -> str:
    if not isinstance(value, Mapping):
        raise Refused(field, f"must be a map with type and text, got {shown(value)}")
    if value.get("type") != "text":
        kind = shown(value.get("type"))
        raise Refused(
            field,
            f"must have the type 'text' (images, audio and files are not offered), got {kind}",
        )
    return text_of(f"{field}.text", value.get("text"))


def num_bytes(message: Message) -> int:
    """Of its texts."""
    calls = message.get("tool_calls", ())
    written = sum(
        len(json.dumps(call, ensure_ascii=False, default=str).encode(errors="replace"))
        for call in calls
    )
    return len(message["content"].encode()) + written


def fits(field: str, num_bytes: int, text: TextModel) -> None:
    """Refuses a text that is too long for any context before time is spent on its tokens."""
    most = text.context_length * BYTES_PER_TOKEN_MAX
    if num_bytes > most:
        raise Refused(
            field,
            f"has {num_bytes} bytes of text; at most {most} are looked at "
            f"for a model's context of {text.context_length} tokens",
            "context_length_exceeded",
        )
