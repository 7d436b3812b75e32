"""What anybody may read of the store: jobs, their tokens and webhooks, sessions, what pools say."""

from typing import Any, cast

import msgspec

from workers.store_client import StoreClient
from workers.wire import EndEvent, PoolLoad, TokenEvent
from workers.wire_fields import parse_entry, parse_job, parse_session, parse_webhook


class StoreReading(StoreClient):
    """Changes nothing, but forgets pools that are silent."""

    def job(self, request_id: str) -> dict[str, Any] | None:
        """The job's hash, parsed; None when there is none."""
        raw = cast(dict[bytes, bytes], self.redis.hgetall(self.keys.job(request_id)))
        return {"id": request_id, **parse_job(raw)} if raw else None

    def webhook(self, request_id: str) -> dict[str, Any]:
        """What is known of a request's webhook: url, state, attempts, ...; empty: it has none."""
        raw = self.redis.hgetall(self.keys.webhook(request_id))
        return parse_webhook(cast(dict[bytes, bytes], raw))

    def tokens(
        self, request_id: str, after: str = "0-0"
    ) -> list[tuple[str, TokenEvent | EndEvent]]:
        """The journal's entries after an entry id."""
        entries = self.redis.xrange(self.keys.tokens(request_id), min=f"({after}", max="+")
        pairs = cast(list[tuple[bytes, dict[bytes, bytes]]], entries)
        return [(entry_id.decode(), parse_entry(entry_id, fields)) for entry_id, fields in pairs]

    def session(self, session: str) -> dict[str, Any]:
        """What is known of a session; empty: nothing.

        holder      the request that is in a queue or runs; absent: none
        waiting     how many wait for it
        fence       claims of its requests so far; home, pool: the worker and pool of the last one
        writing, tokens, generation, used_ms: what pools noted
        committed   fence of the last commit; dropped: what has this one or a lower one is void
        """
        with self.redis.pipeline(transaction=False) as pipeline:
            pipeline.hgetall(self.keys.session(session))
            pipeline.llen(self.keys.session_waiting(session))
            raw, waiting = pipeline.execute(raise_on_error=False)
        for reply in (raw, waiting):
            if isinstance(reply, Exception) and not str(reply).startswith("WRONGTYPE"):
                raise reply  # a key of another type is put right by the next script
        count = waiting if isinstance(waiting, int) else 0
        return {**parse_session(raw), "waiting": count} if raw and isinstance(raw, dict) else {}

    def loads(self, node: str | None = None) -> list[PoolLoad]:
        """What every living pool of a node said last.   node: None: this one"""
        names = self.keys.pools if node is None else self.keys.pools_of(node)
        keys = sorted(cast(set[bytes], self.redis.smembers(names)))
        if not keys:
            return []
        reports = cast(list[bytes | None], self.redis.mget(keys))
        silent = [key for key, report in zip(keys, reports, strict=True) if report is None]
        if silent:
            self.redis.srem(names, *silent)
        return [load for report in reports if (load := pool_load(report)) is not None]


def pool_load(report: bytes | None) -> PoolLoad | None:
    """What a pool said; None: nothing, or what this version cannot read: it is not there for us."""
    try:
        return msgspec.json.decode(report, type=PoolLoad) if report else None
    except msgspec.DecodeError:
        return None
