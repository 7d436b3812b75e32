"""How an answer is delivered, and how many choices it has: what only OpenAI's two APIs say.

What a field of the request itself may hold is router.admit's business.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from ingest.errors import refused
from ingest.fields import flag

COMPLETIOCHOICES_MAX_TOKENS: Final = 16  # the completions API's own default
PROMPT_OF: Final = {"chat": "messages", "completions": "prompt"}
CHOICES_MAX: Final = 128  # of one answer, over all its prompts
DELIVERY: Final = ("stream", "stream_options", "n", "best_of", "echo")  # no fields of a request


@dataclass(frozen=True)
class Delivery:
    """How the client wants its answer. n: choices for each prompt; echo: its prompt first."""

    stream: bool
    include_usage: bool
    n: int = 1
    echo: bool = False


def delivery(body: Mapping[str, Any]) -> Delivery:
    """What stream, stream_options, n, best_of and echo ask for; null means absent."""
    stream = flag(body, "stream")
    n = body.get("n")
    n = 1 if n is None else n
    if not isinstance(n, int) or isinstance(n, bool) or not 1 <= n <= CHOICES_MAX:
        raise refused("n", f"must be an integer from 1 to {CHOICES_MAX}, got {n!r}")
    if body.get("best_of") not in (None, n):
        raise refused("best_of", "is not offered; it must be absent or equal to n")
    echo = flag(body, "echo")
    if echo and body.get("logprobs") is not None:
        raise refused("echo", "log probabilities of a prompt are not offered; leave logprobs out")
    return Delivery(stream=stream, include_usage=include_usage(body, stream), n=n, echo=echo)


def include_usage(body: Mapping[str, Any], stream: bool) -> bool:
    options = body.get("stream_options")
    if options is None:
        return False
    if not isinstance(options, dict) or not stream:
        raise refused("stream_options", "must be an object, and needs stream to be true")
    return flag(options, "include_usage", "stream_options.include_usage")


def split(api: str, fields: Mapping[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The fields that all choices share, and of each prompt those of its own.

    api "chat" has one prompt; "completions" one or a list of them, as text or as token ids.
    """
    wanted = PROMPT_OF[api]
    common = {k: v for k, v in fields.items() if k not in (*DELIVERY, wanted)}
    for other in ("prompt", "messages", "token_ids"):
        if other in common:
            raise refused(other, f"is no field of this API; use {wanted}")
    if wanted not in fields:
        raise refused(wanted, "is required")
    if api == "chat":
        return common, [{wanted: fields[wanted]}]
    common.setdefault("max_tokens", COMPLETIOCHOICES_MAX_TOKENS)
    return common, [{wanted: prompt} for prompt in prompts_of(fields["prompt"])]


def prompts_of(prompt: Any) -> list[Any]:
    """A text, a list of token ids, or a list of such prompts."""
    is_list_of_prompts = isinstance(prompt, list) and prompt and isinstance(prompt[0], str | list)
    return prompt if is_list_of_prompts else [prompt]
