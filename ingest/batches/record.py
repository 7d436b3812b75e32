"""A batch: what was asked, how far it is, and how the API shows it.

    validating ──► in_progress ──► finalizing ──► completed
        │              │  └─ its window is over ──► expired
        ▼              └─ cancelling (POST .../cancel) ──► cancelled
      failed

One file, batch_ID.json, replaced at once whenever something happened. It is written by whoever
holds the batch's lock (driver.py), and by nobody else: a wish to cancel is a file of its own.
"""

import re
from pathlib import Path
from typing import Any, Final

import msgspec

from ingest.batches.shelf import Shelf, in_order, read_record, write_record

BATCH_ID: Final = re.compile(r"batch_[0-9a-f]{24}")
OVER: Final = ("completed", "failed", "expired", "cancelled")
WINDOW: Final = re.compile(r"([1-9][0-9]{0,5})([smhd])")
UNITS_S: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
WINDOW_MAX_S: Final = 30 * 86_400  # what a request may wait (router.fields)


class Fault(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why an input file is none; line counts from 1."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


class Batch(msgspec.Struct, kw_only=True):
    """One batch. Times are Unix seconds, names are OpenAI's.

    total, completed, failed  lines of the input, and those that have a row in a file
    key                       the API key that made it; "": none
    kept_s                    seconds that it and its files stay after it was made
    """

    id: str
    endpoint: str
    input_file_id: str
    completion_window: str
    created_at: int
    expires_at: int
    metadata: dict[str, str] | None = None
    status: str = "validating"
    model: str | None = None
    key: str = ""
    kept_s: int
    faults: list[Fault] = msgspec.field(default_factory=list)
    output_file_id: str | None = None
    error_file_id: str | None = None
    in_progress_at: int | None = None
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelled_at: int | None = None
    total: int = 0
    completed: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0

    @property
    def is_over(self) -> bool:
        return self.status in OVER


class Books:
    """All batches of a shelf, as files; what is said of one at a time is in `Batch`."""

    def __init__(self, shelf: Shelf) -> None:
        self.shelf = shelf

    def path(self, tenant: str, batch_id: str, suffix: str = "json") -> Path:
        assert BATCH_ID.fullmatch(batch_id), batch_id
        return self.shelf.of(tenant) / f"{batch_id}.{suffix}"

    def marker(self, tenant: str, batch_id: str) -> Path:
        return self.shelf.open / f"{tenant}.{batch_id}"

    def begin(self, tenant: str, batch: Batch) -> None:
        """A new batch: accepted when this returns. Without its marker nobody would look at it."""
        self.marker(tenant, batch.id).touch(0o600)
        self.write(tenant, batch)

    def read(self, tenant: str, batch_id: str) -> Batch | None:
        """None when the tenant has no such batch."""
        if not BATCH_ID.fullmatch(batch_id):
            return None
        batch: Batch | None = read_record(self.path(tenant, batch_id), Batch)
        return batch

    def write(self, tenant: str, batch: Batch, *, durable: bool = True) -> None:
        write_record(self.path(tenant, batch.id), batch, durable=durable)

    def end(self, tenant: str, batch: Batch) -> None:
        """It is over: nobody looks at it any more."""
        assert batch.is_over, batch.status
        self.write(tenant, batch)
        self.path(tenant, batch.id, "cancel").unlink(missing_ok=True)
        self.marker(tenant, batch.id).unlink(missing_ok=True)

    def cancel(self, tenant: str, batch_id: str) -> None:
        """A wish, seen by whoever drives it."""
        self.path(tenant, batch_id, "cancel").touch(0o600)

    def cancelling_at(self, tenant: str, batch_id: str) -> int | None:
        """When it was wished; None: it was not, or the batch is over."""
        try:
            return int(self.path(tenant, batch_id, "cancel").stat().st_mtime)
        except FileNotFoundError:
            return None

    def ids(self, tenant: str, *, after: str = "") -> list[str]:
        """All of a tenant, the newest first."""
        names = (path.stem for path in self.shelf.of(tenant).glob("batch_*.json"))
        return in_order(filter(BATCH_ID.fullmatch, names), True, after)

    def open(self) -> list[tuple[str, str]]:
        """(tenant, id) of those that are not over, the oldest first."""
        pairs = [path.name.split(".", 1) for path in self.shelf.open.iterdir()]
        ordered = sorted(pairs, key=lambda pair: pair[1])
        return [(tenant, batch_id) for tenant, batch_id in ordered if BATCH_ID.fullmatch(batch_id)]

    def users(self, tenant: str, file_id: str) -> list[str]:
        """Batches that are not over and read or write the file."""
        mine = (self.read(tenant, batch_id) for owner, batch_id in self.open() if owner == tenant)
        return [b.id for b in mine if b and not b.is_over and file_id in files_of(b)]

    def forget(self, tenant: str, older_than_s: float) -> None:
        """Removes batches that are over and were made before that time."""
        for batch_id in self.ids(tenant):
            batch = self.read(tenant, batch_id)
            if batch and batch.is_over and batch.created_at + batch.kept_s < older_than_s:
                self.path(tenant, batch_id).unlink(missing_ok=True)


def files_of(batch: Batch) -> tuple[str | None, ...]:
    return batch.input_file_id, batch.output_file_id, batch.error_file_id


def window_s(text: str) -> int | None:
    """Seconds of a completion window such as "24h", "90m" or "45s"; None: it is none."""
    match = WINDOW.fullmatch(text)
    seconds = int(match[1]) * UNITS_S[match[2]] if match else 0
    return seconds if 0 < seconds <= WINDOW_MAX_S else None


def batch_object(batch: Batch, cancelling_at: int | None) -> dict[str, Any]:
    """OpenAI's batch object."""
    is_cancelling = cancelling_at is not None and not batch.is_over
    faults = {"object": "list", "data": batch.faults} if batch.faults else None
    shown = ("endpoint", "input_file_id", "completion_window", "created_at", "expires_at", "model")
    files = ("output_file_id", "error_file_id", "metadata")
    times = ("in_progress_at", "finalizing_at", "completed_at", "failed_at", "expired_at")
    return {
        "id": batch.id,
        "object": "batch",
        "status": "cancelling" if is_cancelling else batch.status,
        "errors": faults,
        **{name: getattr(batch, name) for name in (*shown, *files, *times, "cancelled_at")},
        "cancelling_at": cancelling_at,
        "request_counts": {
            "total": batch.total,
            "completed": batch.completed,
            "failed": batch.failed,
        },
        "usage": usage_object(batch),
    }


def usage_object(batch: Batch) -> dict[str, Any]:
    return {
        "input_tokens": batch.prompt_tokens,
        "input_tokens_details": {"cached_tokens": batch.cached_tokens},
        "output_tokens": batch.output_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": batch.prompt_tokens + batch.output_tokens,
    }
