"""From the body of a Responses request to the fields of ours (router/schema.py).

What a field of ours may hold is router.admit's business; its refusals are told by the names that
this API has (NAMES). What cannot be honoured is refused by name; what changes no answer is
ignored, by its absence here (docs/openai.md).
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from ingest.errors import refused
from ingest.fields import flag, request_fields
from ingest.responses.items import input_items, messages_of
from ingest.shapes import Json

NAMES: Final[Mapping[str, str]] = {
    "max_tokens": "max_output_tokens",
    "messages": "input",
    "response_format": "text.format",
    "reasoning_effort": "reasoning.effort",
}
AS_THEY_ARE: Final = ("model", "temperature", "top_p", "metadata", "parallel_tool_calls")
OURS: Final = (  # extra fields of this node, as everywhere else
    *("sla", "deadline_ms", "session_id", "seed", "stop", "top_k", "min_p", "webhook"),
    *("presence_penalty", "frequency_penalty", "repetition_penalty", "chat_template_kwargs"),
)
NOT_OFFERED: Final = ("conversation", "prompt", "context_management", "moderation", "image")
LOGPROBS: Final = "message.output_text.logprobs"
INCLUDES: Final = (LOGPROBS, "reasoning.encrypted_content")  # the second holds nothing here


def check(body: Mapping[str, Any]) -> None:
    """Raises ApiError for what this API has and the node has not."""
    for name in NOT_OFFERED:
        if body.get(name) is not None:
            hint = "; use previous_response_id" if name == "conversation" else ""
            raise refused(name, f"is not offered{hint}", "unsupported")
    for name in ("stream", "store", "background"):
        flag(body, name)
    if body.get("truncation") not in (None, "disabled"):
        raise refused("truncation", "must be disabled: nothing is left out unasked", "unsupported")
    include = body.get("include") or []
    if not isinstance(include, list) or any(name not in INCLUDES for name in include):
        raise refused("include", f"{', '.join(INCLUDES)} are offered", "unsupported")


def fields_of(
    body: Mapping[str, Any], before: Sequence[Json], headers: Mapping[str, str]
) -> dict[str, Any]:
    """The request's fields. before: messages of the responses that it follows. Raises ApiError."""
    fields = request_fields({n: body.get(n) for n in (*AS_THEY_ARE, *OURS)}, headers)
    told = messages_of(input_items(body.get("input")))
    instructions = body.get("instructions")
    if not isinstance(instructions, str | None):
        raise refused("instructions", "must be a text")
    system = [{"role": "system", "content": instructions}] if instructions else []
    fields["messages"] = [*system, *before, *told]
    if body.get("max_output_tokens") is not None:
        fields["max_tokens"] = body["max_output_tokens"]
    if (effort := effort_of(body.get("reasoning"))) is not None:
        fields["reasoning_effort"] = effort
    response_format = format_of(body.get("text"))
    if response_format is not None:
        fields["response_format"] = response_format
    return fields | tools_of(body) | logprobs_of(body)


def tools_of(body: Mapping[str, Any]) -> dict[str, Any]:
    """The fields tools and tool_choice; none of them when there are no tools."""
    tools = body.get("tools") or []
    if not isinstance(tools, list):
        raise refused("tools", "must be a list")
    choice = choice_of("auto" if body.get("tool_choice") is None else body["tool_choice"])
    if not tools:
        return {} if choice in ("auto", "none") else {"tool_choice": choice}
    listed = [tool_of(tool, f"tools[{index}]") for index, tool in enumerate(tools)]
    return {"tools": listed, "tool_choice": choice}


def tool_of(tool: Any, path: str) -> Json:
    """A function, as the chat API has it."""
    if not isinstance(tool, dict):
        raise refused(path, "must be an object")
    if tool.get("type") != "function":
        raise refused(f"{path}.type", f"must be function, got {tool.get('type')!r}", "unsupported")
    names = ("name", "description", "parameters", "strict")
    function = {name: tool[name] for name in names if tool.get(name) is not None}
    return {"type": "function", "function": function}


def choice_of(choice: Any) -> Any:
    if isinstance(choice, dict) and choice.get("type") == "function":
        return {"type": "function", "function": {"name": choice.get("name")}}
    if choice in ("none", "auto", "required"):
        return choice
    raise refused("tool_choice", "must be none, auto, required, or a function by its name")


def effort_of(reasoning: Any) -> Any:
    """`reasoning.effort`; its summary is a hint: thoughts are told as they are."""
    if not isinstance(reasoning, dict | None):
        raise refused("reasoning", "must be an object")
    return (reasoning or {}).get("effort")


def format_of(text: Any) -> Json | None:
    """`text.format` as the chat API's response_format; None: plain text."""
    if text is None:
        return None
    if not isinstance(text, dict):
        raise refused("text", "must be an object")
    wanted = text.get("format")
    if wanted is None:
        return None
    if not isinstance(wanted, dict):
        raise refused("text.format", "must be an object")
    if wanted.get("type") == "text":
        return None
    if wanted.get("type") != "json_schema":
        return wanted
    names = ("name", "description", "schema", "strict")
    schema = {name: wanted[name] for name in names if wanted.get(name) is not None}
    return {"type": "json_schema", "json_schema": schema}


def logprobs_of(body: Mapping[str, Any]) -> dict[str, Any]:
    """Log probabilities are asked for by `include` or by their number."""
    top = body.get("top_logprobs")
    if top is None and LOGPROBS not in (body.get("include") or []):
        return {}
    return {"logprobs": True} | ({} if top is None else {"top_logprobs": top})
