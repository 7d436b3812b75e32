"""From prompt, messages or token_ids to the prompt: its token ids, or a session's messages.

Shape and size are checked before any work is done.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from router.messages import fits, messages_of
from router.refusal import Refused, shown, text_of
from workers.text.template import TemplateError
from workers.text.text_model import TextModel

SOURCES: Final = ("prompt", "messages", "token_ids")
VARIABLES: Final = "chat_template_kwargs"  # as vLLM has it, {"enable_thinking": false}
VARIABLES_MAX, VARIABLE_BYTES_MAX = 16, 1024
VARIABLE: Final = re.compile(r"[a-z][a-z_]{0,63}")
EFFORT: Final = "reasoning_effort"  # OpenAI's, for templates that know it, or enable_thinking
EFFORTS: Final = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
OWN_VARIABLES: Final = ("messages", "add_generation_prompt", "bos_token", "eos_token", "tools")


@dataclass(frozen=True)
class Prompt:
    """What is to be answered. num_tokens: of what the request itself says.

    messages, variables  of a session's request: its prompt is composed when its turn comes, for the
                         history is known only then; token_ids is empty
    """

    token_ids: tuple[int, ...]
    num_tokens: int
    messages: tuple[dict[str, Any], ...] = ()
    variables: Mapping[str, bool | int | float | str] = field(default_factory=dict)


def prompt_of(
    values: Mapping[str, Any],
    text: TextModel,
    variables: Mapping[str, Any],
    tools: Sequence[Mapping[str, Any]] = (),
    session_mode: str | None = None,
) -> Prompt:
    """The prompt of a request, rendered and encoded: 1 to context_length - 1 ids.

    variables, tools  what the template is told beside the messages
    session_mode  of a request that belongs to a session; its messages are only measured
    """
    source = source_of(values)
    if source == "messages":
        messages = messages_of(values[source], text)
        told = {**variables, "tools": list(tools)} if tools else variables
        token_ids = rendered(messages, text, told, session_mode)
    elif values.get(VARIABLES):
        raise Refused(VARIABLES, "goes with messages only, for only they are rendered")
    else:
        token_ids = READERS[source](values[source], text)
    if not token_ids:
        raise Refused(source, "must not be empty")
    too_long(source, len(token_ids), text)
    if source == "messages" and session_mode is not None:
        return Prompt((), len(token_ids), tuple(messages), variables)
    return Prompt(tuple(token_ids), len(token_ids))


def source_of(values: Mapping[str, Any]) -> str:
    """Which of prompt, messages and token_ids the request has: exactly one."""
    given = [name for name in SOURCES if name in values]
    if len(given) != 1:
        got = " and ".join(given) or "none of them"
        wanted = "give exactly one of prompt, messages and token_ids"
        raise Refused(given[0] if given else "prompt", f"{wanted}, got {got}")
    return given[0]


def too_long(source: str, num_tokens: int, text: TextModel) -> None:
    """Refuses a prompt that leaves no room for one token of output."""
    if num_tokens >= text.context_length:
        raise Refused(
            source,
            f"has {num_tokens} tokens, and the model's context of {text.context_length} "
            "must hold the prompt and at least one token of output",
            "context_length_exceeded",
        )


def from_prompt(value: Any, text: TextModel) -> list[int]:
    """A string, or a list of token ids.

    Control tokens in the string are control tokens: it is the whole prompt, written by whoever
    renders conversations for himself, as llama.cpp and vLLM have it.
    """
    if isinstance(value, list | tuple) and value and not isinstance(value[0], str):
        return from_token_ids(value, text, "prompt")
    prompt = text_of("prompt", value)
    if not prompt:
        raise Refused("prompt", "must not be empty")
    fits("prompt", len(prompt.encode()), text)
    return text.encode(prompt, special=True)


def from_token_ids(value: Any, text: TextModel, field: str = "token_ids") -> list[int]:
    if not isinstance(value, list | tuple) or not value:
        raise Refused(field, f"must be a list of at least one token id, got {shown(value)}")
    too_long(field, len(value), text)
    for index, token_id in enumerate(value):
        whole = isinstance(token_id, int) and not isinstance(token_id, bool)
        if not whole or not 0 <= token_id < text.vocab_size:
            allowed = f"must be an integer from 0 to {text.vocab_size - 1}"
            raise Refused(f"{field}[{index}]", f"{allowed}, got {shown(token_id)}")
    return list(value)


def variables_of(values: Mapping[str, Any], text: TextModel) -> dict[str, bool | int | float | str]:
    """What a client tells the chat template beside the messages.

    reasoning_effort counts where the template has a use for it, and is ignored elsewhere.
    """
    told: dict[str, bool | int | float | str] = {}
    if EFFORT in values:
        effort = values[EFFORT]
        if effort not in EFFORTS:
            raise Refused(EFFORT, f"must be one of {', '.join(EFFORTS)}, got {shown(effort)}")
        if text.knows_variable(EFFORT):
            told[EFFORT] = effort
        elif text.knows_variable("enable_thinking"):
            told["enable_thinking"] = effort != "none"
    return told | given_variables(values.get(VARIABLES, {}))


def given_variables(value: Any) -> dict[str, bool | int | float | str]:
    """Those of chat_template_kwargs."""
    if not isinstance(value, Mapping) or len(value) > VARIABLES_MAX:
        allowed = f"must be a map of at most {VARIABLES_MAX} names"
        raise Refused(VARIABLES, f"{allowed}, got {shown(value)}")
    for name, item in value.items():
        if not isinstance(name, str) or not VARIABLE.fullmatch(name) or name in OWN_VARIABLES:
            allowed = f"must be a name of the template other than {', '.join(OWN_VARIABLES)}"
            raise Refused(VARIABLES, f"{allowed}, got {shown(name)}")
        if not isinstance(item, bool | int | float | str) or is_long(item):
            allowed = f"must be true, false, a number or a text of {VARIABLE_BYTES_MAX} bytes"
            raise Refused(f"{VARIABLES}.{name}", f"{allowed}, got {shown(item)}")
    return dict(value)


def is_long(item: bool | int | float | str) -> bool:
    """More than a template needs: of text, or of digits."""
    if isinstance(item, str):
        return len(item.encode(errors="surrogatepass")) > VARIABLE_BYTES_MAX
    return isinstance(item, int) and abs(item) >= 1 << 53


def rendered(
    messages: Sequence[Mapping[str, Any]],
    text: TextModel,
    variables: Mapping[str, Any],
    session_mode: str | None,
) -> list[int]:
    """The conversation as the model's own template writes it.

    What is appended to a session may be no conversation by itself: then only its texts count.
    """
    try:
        return text.render(messages, **variables)
    except TemplateError as error:
        if session_mode is None or session_mode == "history":
            reason = f"the model's chat template refuses them: {error}"
            raise Refused("messages", reason) from error
        return [token_id for item in messages for token_id in text.encode(item["content"])]


READERS: Final[Mapping[str, Callable[[Any, TextModel], list[int]]]] = {
    "prompt": from_prompt,
    "token_ids": from_token_ids,
}
