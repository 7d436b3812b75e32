"""The body of a webhook: composed here and nowhere else, from the hash of a request that has ended.

    {"type": "job.finished", "timestamp": "2026-11-29T10:00:00.250Z", "data": {"id": ..., ...}}

A request that has ended never changes, so every attempt sends the same bytes under the same id. Of
one that has started only what does not change is told: it may move, or get another class.
"""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from msgspec import to_builtins

from workers.timings import timings_of
from workers.wire import split_id
from workers.wire_fields import end_of

START: Final = ".started"  # of the webhook that tells of the start: ID.started
BODY_BYTES_MAX: Final = 20_000  # Standard Webhooks wants less than 20 KB; the rest is read by GET


def compose(request_id: str, job: Mapping[str, Any]) -> bytes:
    """JSON in UTF-8. job: the parsed hash of an ended request (wire_fields.parse_job).

    A text that would make the body too long stays out (text_omitted), then metadata likewise.
    """
    return _fitting(job["status"], job["ended_ms"], _data(request_id, job))


def compose_start(request_id: str, job: Mapping[str, Any]) -> bytes:
    """The same of a request that a pool has begun to work on."""
    tenant, own_id = split_id(request_id)
    data = {
        "id": own_id,
        "tenant": tenant,
        "status": "running",
        "model": job.get("model"),
        "arrival_ms": job.get("arrival_ms"),
        "started_ms": job["started_ms"],
        "metadata": job.get("metadata") or {},
    }
    return _fitting("started", job["started_ms"], data)


def split_name(name: str) -> tuple[str, bool]:
    """(request id, whether it tells of the start), of what the store calls a webhook."""
    return name.removesuffix(START), name.endswith(START)


def _fitting(what: str, at_ms: int, data: dict[str, Any]) -> bytes:
    body = _dump(what, at_ms, data)
    for name in ("text", "metadata"):
        if len(body) < BODY_BYTES_MAX:
            break
        if name in data:
            del data[name]
            data[f"{name}_omitted"] = True
            body = _dump(what, at_ms, data)
    return body


def message_id(request_id: str, status: str) -> str:
    """The webhook-id, the same for every attempt and replay: a receiver can drop repeats."""
    return f"msg_{request_id}_{status}"


def _data(request_id: str, job: Mapping[str, Any]) -> dict[str, Any]:
    tenant, own_id = split_id(request_id)
    end = end_of(job)
    session = {"session_id": end.session_id, "forked_at": end.forked_at} if end.session_id else {}
    return {
        "id": own_id,
        "tenant": tenant,
        "status": end.status,
        "text": end.text,
        "finish_reason": end.finish_reason,
        "usage": end.usage and to_builtins(end.usage),
        "ttft_ms": end.ttft_ms,
        "tpot_ms": end.tpot_ms,
        "timings": timings_of(end),
        "digest": end.digest or None,
        "error": end.error,
        "code": end.code,
        **session,
        "metadata": job.get("metadata") or {},
    }


def _dump(what: str, at_ms: int, data: Mapping[str, Any]) -> bytes:
    moment = datetime.fromtimestamp(at_ms / 1000, UTC)
    timestamp = moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    event = {"type": f"job.{what}", "timestamp": timestamp, "data": data}
    return json.dumps(event, ensure_ascii=False, separators=(",", ":")).encode()
