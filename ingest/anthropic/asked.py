"""From the body of a Messages request to the fields of ours (router/schema.py).

    blocks of a message     text                 its content, joined
                            tool_use             tool_calls of the assistant's message
                            tool_result          a message of role tool, before the text beside it
                            thinking             nothing: thoughts are not repeated to a model

What a field of ours may hold is router.admit's business; its refusals are told by the names that
this API has (NAMES). What is wrong is refused by its path: messages[2].content[0].
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from ingest.errors import refused
from ingest.fields import flag, request_fields
from ingest.shapes import Json

NAMES: Final[Mapping[str, str]] = {
    "stop": "stop_sequences",
    "response_format": "output_config.format",
    "reasoning_effort": "output_config.effort",
    "parallel_tool_calls": "tool_choice",
}
AS_THEY_ARE: Final = ("model", "max_tokens", "temperature", "top_p", "top_k", "metadata")
OURS: Final = (  # extra fields of this node, as everywhere else
    *("sla", "deadline_ms", "session_id", "session_mode", "seed", "min_p", "webhook"),
    *("presence_penalty", "frequency_penalty", "repetition_penalty", "chat_template_kwargs"),
)
NOT_OFFERED: Final = ("container", "mcp_servers", "context_management")
CHOICES: Final = {"auto": "auto", "any": "required", "none": "none"}
ROLES: Final = ("user", "assistant", "system")
THOUGHTS: Final = ("thinking", "redacted_thinking")


def check(body: Mapping[str, Any]) -> None:
    """Raises ApiError for what this API has and the node has not."""
    for name in NOT_OFFERED:
        if body.get(name) is not None:
            raise refused(name, "is not offered", "unsupported")
    flag(body, "stream")


def fields_of(body: Mapping[str, Any], headers: Mapping[str, str]) -> dict[str, Any]:
    """The request's fields. Raises ApiError."""
    fields = request_fields({n: body.get(n) for n in (*AS_THEY_ARE, *OURS)}, headers)
    system = text_of(body["system"], "system") if body.get("system") else ""
    told = [{"role": "system", "content": system}] if system else []
    fields["messages"] = [*told, *messages_of(body.get("messages"))]
    if body.get("stop_sequences"):
        fields["stop"] = body["stop_sequences"]
    if body.get("tools"):
        fields["tools"] = tools_of(body["tools"])
        fields |= choice_of(body.get("tool_choice"))
    return fields | effort_of(body) | format_of(body.get("output_config") or {})


def messages_of(given: Any) -> list[Json]:
    """The conversation; its last message is not the assistant's."""
    if not isinstance(given, list) or not given:
        raise refused("messages", "must be a list of at least one message")
    messages: list[Json] = []
    for index, message in enumerate(given):
        path = f"messages[{index}]"
        if not isinstance(message, dict) or message.get("role") not in ROLES:
            raise refused(f"{path}.role", f"must be one of {', '.join(ROLES)}")
        messages += _messages(message["role"], message.get("content"), f"{path}.content")
    if given[-1]["role"] == "assistant":
        where = f"messages[{len(given) - 1}].role"
        raise refused(where, "the last message must not be the assistant's", "unsupported")
    return messages


def _messages(role: str, content: Any, path: str) -> Iterator[Json]:
    """The messages that the blocks of one are: what tools gave comes first, in its order."""
    if isinstance(content, str):
        yield {"role": role, "content": content}
        return
    texts, calls = list[str](), list[Json]()
    for block, where in blocks_of(content, path):
        kind = block.get("type")
        if kind == "text":
            texts.append(text_in(block, "text", where))
        elif kind == "tool_use" and role == "assistant":
            calls.append(call_of(block, where))
        elif kind == "tool_result" and role == "user":
            yield result_of(block, where)
        elif kind not in THOUGHTS:
            allowed = "text, tool_use (assistant) and tool_result (user) are offered"
            raise refused(f"{where}.type", f"{allowed}, not {kind!r}")
    if calls:
        yield {"role": role, "content": "".join(texts) or None, "tool_calls": calls}
    elif texts or role == "assistant":
        yield {"role": role, "content": "".join(texts)}


def blocks_of(content: Any, path: str) -> Iterator[tuple[Json, str]]:
    """Each block with its path."""
    if not isinstance(content, list):
        raise refused(path, "must be a text or a list of blocks")
    for index, block in enumerate(content):
        if not isinstance(block, dict):
            raise refused(f"{path}[{index}]", "must be an object")
        yield block, f"{path}[{index}]"


def call_of(block: Json, path: str) -> Json:
    if not isinstance(block.get("input"), dict):
        raise refused(f"{path}.input", "must be an object")
    arguments = json.dumps(block["input"], ensure_ascii=False)
    function = {"name": text_in(block, "name", path), "arguments": arguments}
    return {"id": text_in(block, "id", path), "type": "function", "function": function}


def result_of(block: Json, path: str) -> Json:
    content = block.get("content")
    return {
        "role": "tool",
        "tool_call_id": text_in(block, "tool_use_id", path),
        "content": "" if content is None else text_of(content, f"{path}.content"),
    }


def text_of(content: Any, path: str) -> str:
    """A text, or a list of text blocks."""
    if isinstance(content, str):
        return content
    texts = []
    for block, where in blocks_of(content, path):
        if block.get("type") != "text":
            raise refused(f"{where}.type", f"text alone is offered, not {block.get('type')!r}")
        texts.append(text_in(block, "text", where))
    return "".join(texts)


def text_in(block: Json, name: str, path: str) -> str:
    value = block.get(name)
    if not isinstance(value, str):
        raise refused(f"{path}.{name}", "must be a text")
    return value


def tools_of(given: Any) -> list[Json]:
    """Functions, as the chat API has them."""
    if not isinstance(given, list):
        raise refused("tools", "must be a list")
    return [tool_of(tool, f"tools[{index}]") for index, tool in enumerate(given)]


def tool_of(tool: Any, path: str) -> Json:
    if not isinstance(tool, dict):
        raise refused(path, "must be an object")
    if tool.get("type") not in (None, "custom"):
        reason = f"the node runs no tools of its own: must be custom, got {tool['type']!r}"
        raise refused(f"{path}.type", reason, "unsupported")
    function = {"name": tool.get("name"), "parameters": tool.get("input_schema")}
    more = {name: tool[name] for name in ("description", "strict") if tool.get(name) is not None}
    return {"type": "function", "function": {**function, **more}}


def choice_of(choice: Any) -> dict[str, Any]:
    """tool_choice and parallel_tool_calls of what `tool_choice` says."""
    if choice is None:
        return {}
    kind = choice.get("type") if isinstance(choice, dict) else None
    if kind == "tool":
        wanted: Any = {"type": "function", "function": {"name": choice.get("name")}}
    elif kind in CHOICES:
        wanted = CHOICES[kind]
    else:
        raise refused("tool_choice.type", f"must be tool, {', '.join(CHOICES)}, got {kind!r}")
    said = {"tool_choice": wanted}
    if choice.get("disable_parallel_tool_use"):
        said["parallel_tool_calls"] = False
    return said


def effort_of(body: Mapping[str, Any]) -> dict[str, Any]:
    """reasoning_effort of what `thinking` and `output_config.effort` say."""
    thinking, config = body.get("thinking"), body.get("output_config")
    if not isinstance(thinking, dict | None):
        raise refused("thinking", "must be an object")
    if thinking is not None and thinking.get("type") == "disabled":
        return {"reasoning_effort": "none"}
    effort = config.get("effort") if isinstance(config, dict) else None
    return {} if effort is None else {"reasoning_effort": effort}


def format_of(config: Any) -> dict[str, Any]:
    """response_format of what `output_config.format` says."""
    if not isinstance(config, dict):
        raise refused("output_config", "must be an object")
    wanted = config.get("format")
    if wanted is None:
        return {}
    if not isinstance(wanted, dict) or wanted.get("type") != "json_schema":
        raise refused("output_config.format", "must be an object with type json_schema and schema")
    schema = {"name": "answer", "schema": wanted.get("schema"), "strict": True}
    return {"response_format": {"type": "json_schema", "json_schema": schema}}
