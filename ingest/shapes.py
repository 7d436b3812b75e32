"""What the answers of all APIs say alike: usage, and what only this node knows of an answer.

What OpenAI has no field for stands under `lockstep`: id, class, digest, times, and of a session's
request its session and where it left the session's log.
"""

from typing import Any

from workers.text.text_model import TextModel
from workers.wire import EndEvent, Request, Usage

Json = dict[str, Any]


def usage_object(usage: Usage | None) -> Json:
    """OpenAI's usage."""
    prompt = usage.prompt_tokens if usage else 0
    output = usage.output_tokens if usage else 0
    return {
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "total_tokens": prompt + output,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens if usage else 0},
    }


def named_token(text: TextModel, pair: tuple[int, float]) -> Json:
    """A token with its log probability, as OpenAI's two APIs have it."""
    raw = text.token_bytes(pair[0])
    return {"token": raw.decode(errors="replace"), "logprob": pair[1], "bytes": list(raw)}


def lockstep_object(request: Request, end: EndEvent) -> Json:
    """What only this node says of an answer."""
    said: Json = {
        "id": request.own_id,
        "sla": end.sla or request.sla,
        "digest": end.digest,
        "ttft_ms": end.ttft_ms,
        "tpot_ms": end.tpot_ms,
        "queue_ms": end.queue_ms,
    }
    if request.session_id is not None:
        said |= {
            "session_id": request.session_id,
            "forked_at": end.forked_at,
            "cached_tokens": end.usage.cached_tokens if end.usage else 0,
        }
    if end.error:  # there is an answer, but the session does not have it
        said["error"] = {"message": end.error, "code": end.code}
    return said
