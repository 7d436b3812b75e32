"""The body of a webhook: composed here and nowhere else, from the hash of a request that has ended.

    {"type": "job.finished", "timestamp": "2026-11-29T10:00:00.250Z", "data": {"id": ..., ...}}

A request that has ended never changes, so every attempt sends the same bytes under the same id.
"""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

BODY_BYTES_MAX: Final = 20_000  # Standard Webhooks wants less than 20 KB; the rest is read by GET
NUMBERS: Final = ("ttft_ms", "tpot_ms")
COUNTS: Final = ("prompt_tokens", "output_tokens")


def compose(request_id: str, job: Mapping[str, str]) -> bytes:
    """JSON in UTF-8. job: the fields of lockstep:job:ID, status one of wire.TERMINAL.

    A text that would make the body too long stays out (text_omitted), then metadata likewise.
    """
    data = _data(request_id, job)
    body = _dump(job, data)
    for name in ("text", "metadata"):
        if len(body) < BODY_BYTES_MAX:
            break
        del data[name]
        data[f"{name}_omitted"] = True
        body = _dump(job, data)
    return body


def message_id(request_id: str, status: str) -> str:
    """The webhook-id, the same for every attempt and replay: a receiver can drop repeats."""
    return f"msg_{request_id}_{status}"


def public_id(request_id: str) -> tuple[str, str]:
    """(tenant, the id its client knows) of a full id."""
    tenant, mark, name = request_id.partition("--")
    return (tenant, name) if mark else ("default", request_id)


def _data(request_id: str, job: Mapping[str, str]) -> dict[str, Any]:
    tenant, name = public_id(request_id)
    numbers = {key: float(job[key]) if job.get(key) else None for key in NUMBERS}
    counts = {key: int(job[key]) for key in COUNTS if job.get(key)}
    return {
        "id": name,
        "tenant": tenant,
        "status": job["status"],
        "text": job.get("text", ""),
        "finish_reason": job.get("finish_reason") or None,
        "usage": counts or None,
        **numbers,
        "digest": job.get("digest") or None,
        "error": job.get("error") or None,
        "code": job.get("code") or None,
        "metadata": json.loads(job.get("metadata") or "{}"),
    }


def _dump(job: Mapping[str, str], data: Mapping[str, Any]) -> bytes:
    ended = datetime.fromtimestamp(int(job.get("ended_ms") or 0) / 1000, UTC)
    timestamp = ended.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    event = {"type": f"job.{job['status']}", "timestamp": timestamp, "data": data}
    return json.dumps(event, ensure_ascii=False, separators=(",", ":")).encode()
