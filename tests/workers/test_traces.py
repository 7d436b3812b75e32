"""A trace is read off a job's record: whole, in order, the same however often it is told."""

import gzip
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.store import Store
from workers.trace.export import Teller, otlp
from workers.trace.parent import new_traceparent, traceparent_of
from workers.trace.spans import onward, request_spans, webhook_span
from workers.wire import EndEvent, Keys, Request, SamplingParams, WebhookTarget
from workers.worker_store import WorkerStore

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
JOB = {
    "status": "finished", "traceparent": PARENT, "sla": "batch", "model": "m", "plan": "cpu",
    "pool": "cpu", "reason": "cpu: ready", "worker": "w", "arrival_ms": 1000, "queued_ms": 1010,
    "started_ms": 1020, "queue_ms": 25.0, "ttft_ms": 40.0, "tpot_ms": 5.0, "ended_ms": 1060,
    "prompt_tokens": 7, "output_tokens": 4, "finish_reason": "stop",
}  # fmt: skip
NAMES = ["lockstep.request", "queue", "place", "claim", "restore", "prefill", "decode", "finish"]


def test_the_parts_follow_one_another_and_fill_the_whole():
    root, *parts = request_spans("r", JOB)
    assert [root.name, *(part.name for part in parts)] == NAMES
    assert (root.start_ms, root.end_ms) == (parts[0].start_ms, parts[-1].end_ms) == (1000, 1060)
    assert all(one.end_ms == other.start_ms for one, other in pairwise(parts))
    assert [part.end_ms - part.start_ms for part in parts] == [10, 0, 10, 5.0, 15.0, 15.0, 5.0]


def test_it_hangs_below_whoever_asked():
    root, *parts = request_spans("r", JOB)
    assert (root.trace_id, root.parent_id) == tuple(PARENT.split("-")[1:3])
    assert {part.parent_id for part in parts} == {root.span_id}
    assert len({root.span_id, *(part.span_id for part in parts)}) == len(NAMES)
    assert request_spans("r", JOB) == request_spans("r", dict(JOB))


def test_a_request_that_was_refused_ends_where_it_was():
    job = {"status": "failed", "error": "no", "arrival_ms": 5, "ended_ms": 6, "traceparent": PARENT}
    root, queue = request_spans("r", job)
    assert (root.error, queue.name, queue.end_ms) == ("no", "queue", 6)


def test_what_its_last_owner_did_not_see_is_one_part():
    moved = {k: v for k, v in JOB.items() if k not in ("queue_ms", "ttft_ms")}
    spans = request_spans("r", {**moved, "moves": 1, "moved_ms": 1030})
    assert [span.name for span in spans] == [*NAMES[:4], "run"]
    assert spans[0].events[0][:2] == (1030, "moved")


def test_a_webhook_goes_on_in_the_same_trace():
    hook = {"state": "dead", "created_ms": 1060, "last_ms": 1100, "last_error": "HTTP 500"}
    span = webhook_span("r", JOB, hook)
    assert (span.parent_id, span.error) == (request_spans("r", JOB)[0].span_id, "HTTP 500")
    assert onward("r", JOB).split("-")[1:3] == [span.trace_id, span.span_id]
    assert webhook_span("r", JOB, {"state": "pending", "created_ms": 1}) is None


@given(st.one_of(st.text(), st.none(), st.integers(), st.just(PARENT), st.just(PARENT.upper())))
def test_what_is_no_traceparent_is_ignored(value):
    assert traceparent_of(value) == (PARENT if value == PARENT else "")
    assert traceparent_of(new_traceparent())


@pytest.fixture
def store(redis_url):
    return WorkerStore(redis_url, Keys("lockstep"))


def run_one(store, request_id: str, **more) -> None:
    """From its stream through a pool to its end."""
    stream = store.keys.requests("batch")
    if not store.redis.exists(stream):
        store.redis.xgroup_create(stream, "router", mkstream=True)
    entry = store.redis.xadd(stream, {"m": b"x"}).decode()
    store.redis.xreadgroup("router", "test", {stream: ">"})
    params = SamplingParams(max_tokens=4)
    told = {"sla": "batch", "arrival_ms": int(entry.split("-")[0]), "params": params, **more}
    request = Request(id=request_id, model="m", token_ids=(1,), **told)
    placed = {"sla": "batch", "entry_id": entry, "pool": "cpu", "reason": "cpu: ready"}
    assert store.route(request=request, **placed) == "routed"
    (item,) = store.claim("cpu", "w", 1)
    assert store.finish("cpu", "w", item, EndEvent(status="finished", queue_ms=1, ttft_ms=2), "x")


def test_a_request_with_a_traceparent_is_told_once_it_has_ended(store):
    told = []
    run_one(store, "r", traceparent=PARENT)
    run_one(store, "untraced")
    teller = Teller(store, "t", lambda spans: told.extend(spans) or True)
    assert teller.tell(block_s=0.01) and teller.tell(block_s=0.01)
    assert [span.name for span in told] == NAMES
    assert store.redis.xlen(store.keys.traces) == 0


def test_what_has_not_arrived_is_told_again(store):
    told, answers = [], [False, True]
    run_one(store, "r", traceparent=PARENT)
    teller = Teller(store, "t", lambda spans: told.append(len(spans)) or answers.pop(0))
    teller.stopping.set()  # waits for nothing
    assert not teller.tell(block_s=0.01)
    assert not Teller(store, "t", teller.export).tell("0", 0.01)  # it was left from before
    assert told == [len(NAMES)] * 2 and store.redis.xlen(store.keys.traces) == 0


def test_where_traces_are_wanted_each_request_has_one(redis_url):
    store = WorkerStore(redis_url, Keys("lockstep"), traces=True)
    run_one(store, "r")
    assert traceparent_of(store.job("r")["traceparent"])


def test_spans_arrive_at_a_collector(store):
    """By OTLP over HTTP, as the SDK's own exporter writes it."""
    pytest.importorskip("opentelemetry.sdk", reason="pip install '.[traces]'")
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="pip install '.[traces]'")
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    bodies = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self):
            bodies.append((self.path, self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Collector)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        hook = WebhookTarget(url="https://example.com/h")
        run_one(store, "r", traceparent=PARENT, webhook=hook)
        Teller(store, "t", otlp(f"http://127.0.0.1:{server.server_port}", "t")).tell(block_s=0.01)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    ((path, body),) = bodies
    raw = gzip.decompress(body) if body[:2] == b"\x1f\x8b" else body
    (group,) = ExportTraceServiceRequest.FromString(raw).resource_spans
    spans = {span.name: span for scope in group.scope_spans for span in scope.spans}
    assert (path, set(spans)) == ("/v1/traces", set(NAMES))
    assert spans["lockstep.request"].trace_id.hex() == PARENT.split("-")[1]
    assert spans["prefill"].end_time_unix_nano - spans["prefill"].start_time_unix_nano == 1_000_000


def test_a_plain_store_makes_none(redis_url):
    store = WorkerStore(redis_url, Keys("lockstep"))
    assert isinstance(store, Store)
    run_one(store, "r")
    assert "traceparent" not in store.job("r")
    assert store.redis.exists(store.keys.traces) == 0
