"""From the body of an OpenAI request to the fields of ours, and how its answer is delivered.

What a field may hold is router.admit's business; here is only what the two APIs say differently.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from secrets import token_hex
from typing import Any, Final

from ingest.errors import ApiError
from workers.wire import DEFAULT_TENANT

COMPLETION_MAX_TOKENS: Final = 16  # the completions API's own default
SLA_HEADER: Final = "x-lockstep-sla"
SESSION_HEADER: Final = "x-session-id"
TRACE_HEADER: Final = "traceparent"
PROMPT_OF: Final = {"chat": "messages", "completions": "prompt"}


@dataclass(frozen=True)
class Delivery:
    """How the client wants its answer."""

    stream: bool
    include_usage: bool


def request_fields(body: Mapping[str, Any], headers: Mapping[str, str]) -> dict[str, Any]:
    """The request's own fields: null means absent.

    The headers count when the body names no class, or no session. A request without an id gets one,
    so that its sender can find it again.
    """
    fields = {name: value for name, value in body.items() if value is not None}
    named = ((SLA_HEADER, "sla"), (SESSION_HEADER, "session_id"), (TRACE_HEADER, "traceparent"))
    for header, name in named:
        if header in headers:
            fields.setdefault(name, headers[header])
    fields.setdefault("id", f"req-{token_hex(10)}")
    fields["tenant"] = DEFAULT_TENANT  # never the client's to say
    return fields


def openai_fields(api: str, body: Mapping[str, Any], headers: Mapping[str, str]) -> dict[str, Any]:
    """As request_fields, for api "chat" or "completions". A list of one prompt is that prompt."""
    fields = request_fields(body, headers)
    for name in ("stream", "stream_options"):
        fields.pop(name, None)
    wanted = PROMPT_OF[api]
    for other in ("prompt", "messages", "token_ids"):
        if other != wanted and other in fields:
            reason = f"{other}: is no field of this API; use {wanted}"
            raise ApiError(400, reason, param=other, code="bad_request")
    if wanted not in fields:
        raise ApiError(400, f"{wanted}: is required", param=wanted, code="bad_request")
    if api == "completions":
        fields["prompt"] = _one_prompt(fields["prompt"])
        fields.setdefault("max_tokens", COMPLETION_MAX_TOKENS)
    return fields


def _one_prompt(prompt: Any) -> Any:
    if not isinstance(prompt, list) or not prompt or not isinstance(prompt[0], str | list):
        return prompt
    if len(prompt) > 1:
        reason = f"prompt: must be one prompt a request, got {len(prompt)}"
        raise ApiError(400, reason, param="prompt", code="bad_request")
    return prompt[0]


def delivery(body: Mapping[str, Any]) -> Delivery:
    """What `stream` and `stream_options` ask for."""
    stream = body.get("stream") or False
    if not isinstance(stream, bool):
        raise ApiError(400, "stream: must be true or false", param="stream", code="bad_request")
    options = body.get("stream_options")
    if options is None:
        return Delivery(stream=stream, include_usage=False)
    if not isinstance(options, dict) or not stream:
        reason = "stream_options: must be an object, and needs stream to be true"
        raise ApiError(400, reason, param="stream_options", code="bad_request")
    return Delivery(stream=True, include_usage=options.get("include_usage") is True)
