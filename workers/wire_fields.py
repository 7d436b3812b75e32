"""Requests and events as fields of hashes and stream entries, and back (page: WIRE.md)."""

import json
import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from workers.wire import (
    END_ENTRY_ID,
    TERMINAL,
    VERSION,
    EndEvent,
    Planned,
    Request,
    TokenEvent,
    Usage,
    WebhookTarget,
)


def token_fields(event: TokenEvent) -> dict[str, str | int]:
    """The fields of a token's entry; its index is in the entry's id."""
    fields: dict[str, str | int] = {
        "token": event.token_id,
        "text": event.text,
        "digest": event.digest,
    }
    if event.logprobs is not None:
        fields["logprobs"] = json.dumps(event.logprobs, separators=(",", ":"))
    return fields


def end_fields(event: EndEvent) -> dict[str, str | int]:
    """The fields of the end entry and of the job's hash alike, status first; None is left out."""
    assert event.status in TERMINAL, event.status
    fields: dict[str, str | int] = {"status": event.status, "text": event.text}
    for name in ("finish_reason", "error", "code", "ttft_ms", "tpot_ms", "queue_ms"):
        value = getattr(event, name)
        if value is not None:
            fields[name] = value if isinstance(value, str) else f"{value:.3f}"
    if event.digest:
        fields["digest"] = event.digest
    if event.retry_after_s is not None:
        fields["retry_after_s"] = event.retry_after_s
    if event.usage is not None:
        fields["prompt_tokens"] = event.usage.prompt_tokens
        fields["output_tokens"] = event.usage.output_tokens
        fields["cached_tokens"] = event.usage.cached_tokens
    return fields


def parse_entry(entry_id: str | bytes, fields: Mapping[bytes, bytes]) -> TokenEvent | EndEvent:
    """The event that an entry of a token stream holds. Raises ValueError: no pool wrote it."""
    name = entry_id.decode() if isinstance(entry_id, bytes) else entry_id
    try:
        return _event(name, fields)
    except (LookupError, TypeError, ArithmeticError) as error:
        raise ValueError(f"entry {name} is no event: {error!r}") from error


def _event(name: str, fields: Mapping[bytes, bytes]) -> TokenEvent | EndEvent:
    job = parse_job(fields)
    if name == END_ENTRY_ID:
        return end_of(job)
    logprobs = json.loads(fields[b"logprobs"]) if b"logprobs" in fields else None
    return TokenEvent(
        index=int(name.removeprefix("0-")) - 1,
        token_id=int(fields[b"token"]),
        text=job["text"],
        digest=job["digest"],
        logprobs=None if logprobs is None else [(int(t), float(p)) for t, p in logprobs],
    )


def end_of(job: Mapping[str, Any]) -> EndEvent:
    """The end that a parsed end entry, or the parsed hash of an ended job, tells of."""
    usage = None
    if job.get("output_tokens") is not None:
        usage = Usage(
            prompt_tokens=job.get("prompt_tokens") or 0,
            output_tokens=job["output_tokens"],
            cached_tokens=job.get("cached_tokens") or 0,
        )
    return EndEvent(
        status=job["status"],
        finish_reason=job.get("finish_reason"),
        text=job.get("text", ""),
        error=job.get("error"),
        code=job.get("code"),
        digest=job.get("digest", ""),
        usage=usage,
        ttft_ms=job.get("ttft_ms"),
        tpot_ms=job.get("tpot_ms"),
        queue_ms=job.get("queue_ms"),
        session_id=job.get("session_id"),
        forked_at=job.get("forked_at"),
        sla=job.get("sla"),
        retry_after_s=job.get("retry_after_s"),
        pool=job.get("pool"),
        reason=job.get("reason"),
    )


def request_fields(request: Request, reason: str) -> dict[str, str | int | bytes]:
    """What routing writes into the job's hash."""
    fields: dict[str, str | int | bytes] = {
        "request": msgspec.msgpack.encode(request),
        "sla": request.sla,
        "tenant": request.tenant,
        "model": request.model,
        "arrival_ms": request.arrival_ms,
        "max_tokens": request.params.max_tokens,
        "metadata": json.dumps(request.metadata, ensure_ascii=False),
        "reason": reason,
    }
    if request.token_ids:
        fields["prompt_tokens"] = len(request.token_ids)
    if request.deadline_ms is not None:
        fields["deadline_ms"] = request.deadline_ms
    if request.session_id is not None:
        fields["session_id"] = request.session_id
    if request.traceparent:
        fields["traceparent"] = request.traceparent
    return fields | webhook_fields(request.webhook)


def parse_request(raw: bytes) -> Request:
    """The admitted request in a job's hash. Raises ValueError: this version cannot run it.

    Fields that are not known are no reason: they were added since, and change no token. What does
    change tokens comes with another v, and to pass over it would be another answer.
    """
    try:
        request = msgspec.msgpack.decode(raw, type=Request)
    except msgspec.MsgspecError as error:
        raise ValueError(f"the request cannot be read: {error}") from None
    if request.v != VERSION:
        raise ValueError(f"the request is of version {request.v}, this is version {VERSION}")
    return request


def planned_fields(plan: Planned) -> dict[str, str | int | bytes]:
    """What the router planned for a request, in the job's hash; None is left out."""
    fields: dict[str, str | int | bytes] = {}
    if plan.kind:
        fields["plan"] = plan.kind
    if plan.then_pool is not None:
        fields["then_pool"] = plan.then_pool
    if plan.predicted_ttft_ms is not None:
        fields["predicted_ttft_ms"] = f"{plan.predicted_ttft_ms:.1f}"
    return fields


def webhook_fields(webhook: WebhookTarget | None) -> dict[str, str | int | bytes]:
    """The webhook in the job's hash: what ends the job reads it there."""
    if webhook is None:
        return {}
    return {
        "webhook_url": webhook.url,
        "webhook_secret_id": webhook.secret_id,
        "webhook_events": ",".join(webhook.events),
    }


INT_FIELDS: Final = (
    *("arrival_ms", "queued_ms", "started_ms", "ended_ms", "deadline_ms"),
    *("attempts", "prompt_tokens", "output_tokens", "cached_tokens", "cancel", "forked_at"),
    *("max_tokens", "moves", "moved_ms", "charged_tokens", "retry_after_s", "rank"),
    "session_wait_ms",
)
FLOAT_FIELDS: Final = ("ttft_ms", "tpot_ms", "queue_ms", "predicted_ttft_ms")


def parse_job(raw: Mapping[bytes, bytes]) -> dict[str, Any]:
    """A job's hash with Python's types: numbers, metadata as a dict; request stays msgpack."""
    job: dict[str, Any] = {}
    for key, value in raw.items():
        name = key.decode()
        if name in INT_FIELDS:
            job[name] = int(value)
        elif name in FLOAT_FIELDS:
            job[name] = float(value)
        elif name == "metadata":
            job[name] = json.loads(value)
        else:
            job[name] = value if name == "request" else value.decode("utf-8", "replace")
    return job


INTEGER: Final = re.compile(r"-?[0-9]{1,19}")
SESSION_INTS: Final = ("fence", "tokens", "generation", "committed", "dropped", "used_ms")


def parse_session(raw: Mapping[bytes, bytes]) -> dict[str, Any]:
    """A session's hash with Python's types, without numbers that are none: nobody needs them."""
    words = {k.decode("utf-8", "replace"): v.decode("utf-8", "replace") for k, v in raw.items()}
    session: dict[str, Any] = {}
    for name, text in words.items():
        if name not in SESSION_INTS:
            session[name] = text
        elif INTEGER.fullmatch(text):
            session[name] = int(text)
    return session


WEBHOOK_INTS: Final = ("attempts", "failures", "last_status", "last_ms", "next_at", "created_ms")


def parse_webhook(raw: Mapping[bytes, bytes]) -> dict[str, Any]:
    """A webhook's hash with Python's types; last_status is None when nothing answered."""
    webhook: dict[str, Any] = {}
    for key, value in raw.items():
        name, text = key.decode(), value.decode("utf-8", "replace")
        webhook[name] = (int(text) if text else None) if name in WEBHOOK_INTS else text
    return webhook
