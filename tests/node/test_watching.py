"""A whole node watched: its dashboard in a real browser, its traces at a collector."""

import gzip
import os
import shutil
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import httpx
import pytest

from tests.node.running_node import wait_for
from tests.node.webhook_receiver import SECRET

CHROMIUM = os.environ.get("LOCKSTEP_CHROMIUM") or shutil.which("chromium")
PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
PARTS = {"queue", "place", "claim", "restore", "prefill", "decode", "finish"}
WAIT_MS = 120_000


@pytest.mark.slow
def test_a_job_appears_streams_and_ends_in_a_browser(node):
    api = pytest.importorskip("playwright.sync_api", reason="pip install '.[browser]'")
    if CHROMIUM is None:
        pytest.skip("there is no chromium: apt-get install chromium")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page()
        page.set_default_timeout(WAIT_MS)
        page.goto(f"{node.url}/")
        page.locator("#state[data-state=live]").wait_for()
        body = {"prompt": "Once upon a time", "max_tokens": 400, "temperature": 0, "id": "tale"}
        assert httpx.post(f"{node.url}/v1/jobs", json=body).status_code == 202
        page.locator("#running button", has_text="tale").click()
        text = page.locator("#job-text")
        api.expect(text).not_to_be_empty(timeout=WAIT_MS)
        some = text.text_content()
        api.expect(page.locator("#job-facts")).to_contain_text("finished", timeout=WAIT_MS)
        whole = httpx.get(f"{node.url}/v1/jobs/tale").json()["text"]
        assert some and whole.startswith(some) and text.text_content() == whole
        browser.close()


class Collector(BaseHTTPRequestHandler):
    """Keeps what comes by OTLP."""

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.bodies.append(gzip.decompress(body) if body[:2] == b"\x1f\x8b" else body)
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


@pytest.fixture
def collector():
    server = HTTPServer(("127.0.0.1", 0), Collector)
    server.bodies = []
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.slow
def test_a_trace_goes_from_xadd_to_webhook(make_node, collector, receiver):
    pytest.importorskip("opentelemetry.sdk", reason="pip install '.[traces]'")
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="pip install '.[traces]'")
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    node = make_node(
        LOCKSTEP_TRACES=f"http://127.0.0.1:{collector.server_port}",
        LOCKSTEP_WEBHOOK_SECRET=SECRET,
        LOCKSTEP_WEBHOOK_ALLOW="127.0.0.0/8",
    )
    fields = {"prompt": "The capital of France is", "max_tokens": 8, "id": "traced"}
    fields |= {"traceparent": PARENT, "webhook_url": receiver.url}
    node.store.redis.xadd(node.store.keys.requests("batch"), fields)

    def spans():
        return {
            span.name: span
            for body in list(collector.bodies)
            for group in ExportTraceServiceRequest.FromString(body).resource_spans
            for scope in group.scope_spans
            for span in scope.spans
        }

    wait_for(lambda: "webhook" in spans(), "the webhook's span")
    found = spans()
    assert found.keys() == PARTS | {"lockstep.request", "webhook"}
    root = found.pop("lockstep.request")
    assert root.parent_span_id.hex() == PARENT.split("-")[2]
    assert {span.trace_id.hex() for span in found.values()} == {PARENT.split("-")[1]}
    assert {span.parent_span_id for span in found.values()} == {root.span_id}
    assert all(span.start_time_unix_nano <= span.end_time_unix_nano for span in found.values())
    counted = 'lockstep_time_to_first_token_seconds_count{pool="cpu",sla="batch"'
    wait_for(lambda: counted in httpx.get(f"{node.url}/metrics").text, "its times in /metrics")
