"""A tenant's jobs, newest first, a page at a time: what GET /v1/jobs and `lockstep jobs` show.

    lockstep:jobs:TENANT   ids by arrival      page ──► their hashes ──► those that are wanted

A job is there from its acceptance (of a plain XADD: from its placing) until its result expires
(forget_jobs.lua). Filters are looked at one job after the other, LOOK_MOST at most for one page: a
page may hold fewer than were asked for, and say that there is more.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from workers.store import Store
from workers.wire import DEFAULT_TENANT, split_id
from workers.wire_fields import parse_job

LOOK_MOST: Final = 2000
BATCH: Final = 250
FIELDS: Final = (
    *("status", "sla", "model", "plan", "pool", "reason", "moves", "attempts", "session_id"),
    *("arrival_ms", "queued_ms", "started_ms", "ended_ms", "deadline_ms", "finish_reason"),
    *("error", "code", "ttft_ms", "tpot_ms", "queue_ms", "prompt_tokens", "output_tokens"),
    *("cached_tokens", "predicted_ttft_ms", "retry_after_s", "worker"),
)


class Place(NamedTuple):
    """Where a page ended: the next one begins behind it. As text MS:ID."""

    arrival_ms: int
    request_id: str

    def __str__(self) -> str:
        return f"{self.arrival_ms}:{self.request_id}"


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which jobs. Empty and None: all of them.

    states      of STATES      session  the tenant's own name of one
    since_ms, until_ms         arrival, Unix ms: from the one on, up to before the other
    """

    tenant: str = DEFAULT_TENANT
    states: frozenset[str] = frozenset()
    sla: str | None = None
    session: str | None = None
    since_ms: int | None = None
    until_ms: int | None = None

    @property
    def is_narrow(self) -> bool:
        """Whether jobs are passed over: those of another state, class or session."""
        return bool(self.states or self.sla or self.session)

    def wants(self, job: dict[str, Any]) -> bool:
        return (
            (not self.states or job["status"] in self.states)
            and self.sla in (None, job.get("sla"))
            and self.session in (None, job.get("session_id"))
        )


@dataclass(frozen=True, slots=True)
class Page:
    """jobs: parsed hashes with `id`, the tenant's own; next: where to go on, None: it was all."""

    jobs: list[dict[str, Any]]
    next: Place | None


def parse_place(text: str) -> Place:
    """Raises ValueError for what no page has said."""
    arrival, colon, request_id = text.partition(":")
    if not (colon and request_id and arrival.isascii() and arrival.isdigit() and len(arrival) < 17):
        raise ValueError("must be what an earlier page said as `next`")
    return Place(int(arrival), request_id)


def list_jobs(store: Store, wanted: Wanted, *, limit: int, after: Place | None = None) -> Page:
    """One page. limit: jobs at most, >= 1. Raises redis' errors."""
    jobs: list[dict[str, Any]] = []
    looked = 0
    size = BATCH if wanted.is_narrow else min(BATCH, limit + 1)
    for batch in batches(store, wanted, after, size):
        found = read(store, [place.request_id for place in batch])
        for place, job in zip(batch, found, strict=True):
            looked += 1
            if job is not None and wanted.wants(job):
                jobs.append(job)
            if len(jobs) == limit or looked == LOOK_MOST:
                return Page(jobs, place)
    return Page(jobs, None)


def batches(store: Store, wanted: Wanted, after: Place | None, size: int) -> Iterator[list[Place]]:
    """All places behind `after`, newest first; of the same millisecond the largest id first."""
    key = store.keys.jobs_of(wanted.tenant)
    newest: Any = "+inf" if wanted.until_ms is None else f"({wanted.until_ms}"
    if after is not None and (wanted.until_ms is None or after.arrival_ms < wanted.until_ms):
        newest = after.arrival_ms
    oldest: Any = "-inf" if wanted.since_ms is None else wanted.since_ms
    skip = 0
    while True:
        found: Any = store.redis.zrevrangebyscore(
            key, newest, oldest, start=skip, num=size, withscores=True
        )
        places = [Place(int(score), member.decode()) for member, score in found]
        fresh = [place for place in places if after is None or place < after]
        yield fresh
        if len(places) < size:
            return
        # Meanwhile jobs may come and go: what was seen is read again rather than anything missed.
        after, last = fresh[-1] if fresh else after, places[-1].arrival_ms
        skip = skip + (size + 1) // 2 if last == newest else 0
        newest = last


def read(store: Store, request_ids: Sequence[str]) -> list[dict[str, Any] | None]:
    """What is known of each, without its text; None: its record has gone."""
    with store.redis.pipeline(transaction=False) as pipeline:
        for request_id in request_ids:
            pipeline.hmget(store.keys.job(request_id), FIELDS)
        rows = pipeline.execute()
    return [job_of(name, row) for name, row in zip(request_ids, rows, strict=True)]


def job_of(request_id: str, values: Sequence[bytes | None]) -> dict[str, Any] | None:
    """values: as FIELDS."""
    known = {k.encode(): v for k, v in zip(FIELDS, values, strict=True) if v is not None}
    if b"status" not in known:
        return None
    return {"id": split_id(request_id)[1], **parse_job(known)}
