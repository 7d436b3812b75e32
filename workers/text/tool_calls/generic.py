"""Tools for a chat template that knows none: told in a system message, in the form hermes.

system     ... For each call write <tool_call>\\n{"name": ..., "arguments": {...}}\\n</tool_call>
assistant  its text, then its calls in that form
user       <tool_response>\\n...\\n</tool_response>       in place of the role tool
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from workers.text.tool_calls.forms import BEGIN, END, Tool

Message = Mapping[str, Any]

HEAD: Final = "You may call functions to answer. Their signatures, one a line:\n<tools>\n"
TAIL: Final = (
    "\n</tools>\nFor each call write a JSON object with its name and arguments:\n"
    f'{BEGIN}\n{{"name": "NAME", "arguments": {{...}}}}\n{END}'
)


def told(messages: Sequence[Message], tools: Sequence[Tool]) -> list[Message]:
    """The messages as such a template can write them; every position keeps its content's place.

    The system message comes first, the client's own before ours in it.
    """
    simple = [plain(message) for message in messages]
    if not tools:
        return simple
    signatures = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    ours = f"{HEAD}{signatures}{TAIL}"
    if simple and simple[0]["role"] == "system":
        return [{**simple[0], "content": f"{simple[0]['content']}\n\n{ours}"}, *simple[1:]]
    return [{"role": "system", "content": ours}, *simple]


def plain(message: Message) -> Message:
    """A message with role and content only."""
    if message["role"] == "tool":
        content = f"<tool_response>\n{message['content']}\n</tool_response>"
        return {"role": "user", "content": content}
    calls = message.get("tool_calls")
    if not calls:
        return message
    written = [f"{BEGIN}\n{json.dumps(_call(call), ensure_ascii=False)}\n{END}" for call in calls]
    parts = [message["content"], *written] if message["content"] else written
    return {"role": message["role"], "content": "\n".join(parts)}


def _call(call: Message) -> Message:
    function = call["function"]
    return {"name": function["name"], "arguments": function["arguments"]}
