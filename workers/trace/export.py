"""The thread that tells traces: takes what has ended from the store, and sends it by OTLP.

    lockstep:traces ──XREADGROUP──► job's record ──► spans.py ──► LOCKSTEP_TRACES/v1/traces

It stands beside the webhooks, with which a trace ends; no request waits for it. What could not be
sent is tried again, and the oldest is forgotten (the stream is bounded). Needs the extra `traces`.
"""

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final, cast

from redis.exceptions import RedisError, ResponseError

from workers.log import logger
from workers.store import Store
from workers.trace.spans import Span, request_spans, webhook_span

GROUP: Final = "traces"
BATCH: Final = 100
BLOCK_S: Final = 5.0
AGAIN_S: Final = 5.0
log = logger("traces")

Export = Callable[[Sequence[Span]], bool]  # whether they have arrived


class Teller:
    """Safe to run in one thread of each node. export: sends spans."""

    def __init__(self, store: Store, name: str, export: Export) -> None:
        self.store, self.name, self.export = store, name, export
        self.reads = store.blocking(BLOCK_S)
        self.stopping = threading.Event()

    def run(self) -> None:
        """Until stopping is set."""
        since = "0"  # first what an earlier process of this name did not get told
        while not self.stopping.is_set():
            try:
                since = ">" if self.tell(since) else "0"
            except (RedisError, OSError) as error:
                log.debug("traces wait for the store", error=str(error)[:200])
                self.stopping.wait(AGAIN_S)

    def tell(self, since: str = ">", block_s: float = BLOCK_S) -> bool:
        """One batch; False: it has not arrived, or more may be left of before."""
        entries = self.read(since, block_s)
        spans = [span for _, fields in entries for span in self.spans(fields)]
        if spans and not self.export(spans):
            self.stopping.wait(AGAIN_S)
            return False
        if entries:
            key, ids = self.store.keys.traces, [entry_id for entry_id, _ in entries]
            with self.store.redis.pipeline(transaction=True) as pipeline:
                pipeline.xack(key, GROUP, *ids)
                pipeline.xdel(key, *ids)
                pipeline.execute()
        return not entries or since == ">"

    def read(self, since: str, block_s: float) -> list[tuple[bytes, dict[bytes, bytes]]]:
        key, block_ms = self.store.keys.traces, max(1, int(1000 * block_s))
        with suppress(ResponseError):  # there is one
            self.store.redis.xgroup_create(key, GROUP, id="0", mkstream=True)
        reply = self.reads.xreadgroup(GROUP, self.name, {key: since}, count=BATCH, block=block_ms)
        return cast(Any, next(iter(cast(Any, reply).values()))[0]) if reply else []

    def spans(self, fields: dict[bytes, bytes]) -> list[Span]:
        """Of one entry; none of a record that has gone."""
        request_id = fields.get(b"id", b"").decode("utf-8", "replace")
        job = self.store.job(request_id)
        if job is None or not job.get("traceparent") or "ended_ms" not in job:
            return []
        if fields.get(b"what") == b"end":
            return request_spans(request_id, job)
        span = webhook_span(request_id, job, self.store.webhook(request_id))
        return [] if span is None else [span]


def start(store: Store, name: str, endpoint: str) -> None:
    """Begins to tell traces, in a thread of its own; without the extra it says so, once."""
    try:
        export = otlp(endpoint, name)
    except ImportError as error:
        log.error("LOCKSTEP_TRACES needs the extra: pip install '.[traces]'", error=str(error))
        return
    teller = Teller(store, name, export)
    threading.Thread(target=teller.run, daemon=True, name="traces").start()
    log.info("traces are sent", endpoint=endpoint)


def otlp(endpoint: str, instance: str) -> Export:
    """Sends spans by OTLP over HTTP. Raises ImportError without the extra `traces`."""
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace.export import SpanExportResult

    exporter = OTLPSpanExporter(endpoint=f"{endpoint.rstrip('/')}/v1/traces", timeout=10)
    named = {"service.name": "lockstep", "service.instance.id": instance}
    resource = Resource.create(named)

    def export(spans: Sequence[Span]) -> bool:
        result = exporter.export([readable(span, resource) for span in spans])
        return bool(result is SpanExportResult.SUCCESS)

    return export


def readable(span: Span, resource: Any) -> Any:
    """A span as the SDK's exporters take it."""
    from opentelemetry.sdk.trace import Event, ReadableSpan
    from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

    def context(span_id: str, remote: bool) -> SpanContext:
        flags = TraceFlags(TraceFlags.SAMPLED)
        return SpanContext(int(span.trace_id, 16), int(span_id, 16), remote, flags)

    code = StatusCode.ERROR if span.error else StatusCode.OK
    return ReadableSpan(
        name=span.name,
        context=context(span.span_id, False),
        parent=context(span.parent_id, True),
        resource=resource,
        attributes=span.attributes,
        events=[Event(name, told, nanoseconds(at_ms)) for at_ms, name, told in span.events],
        kind=SpanKind.SERVER if span.name.startswith("lockstep") else SpanKind.INTERNAL,
        status=Status(code, span.error or None),
        start_time=nanoseconds(span.start_ms),
        end_time=nanoseconds(span.end_ms),
    )


def nanoseconds(ms: float) -> int:
    """To the microsecond: a float has no more of Unix time."""
    return round(ms * 1000) * 1000
