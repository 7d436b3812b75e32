"""The largest batch that there may be, through a kill of the api process; over an engine that
computes nothing. What it prints is in tests/bench/RESULTS.md."""

import json
import signal
import subprocess
import time

import httpx
import openai
import psutil
import pytest

from ingest.batches.lines import LINES_MAX
from ingest.command.bench.own_node import running
from tests.ingest.batches.conftest import CHAT

PROGRAMS = {
    "store": ["workers.store_server"],
    "router": ["router"],
    "pool": ["ingest.command.bench.free_engine", "0"],
    "api": ["ingest"],
}
OPTIONS = {"LOCKSTEP_MAX_BATCH": "64", "LOCKSTEP_SLA": '{"batch": {"deadline_ms": 0}}'}
LIMIT_S = 3600


def restart_api(node) -> None:
    old = node.processes["api"]
    old.send_signal(signal.SIGKILL)
    old.wait()
    command = [*old.args]
    node.processes["api"] = subprocess.Popen(command, env=node.environment)


@pytest.mark.slow
def test_fifty_thousand_lines_through_a_kill(model_home, capsys):
    body = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
    line = {"method": "POST", "url": CHAT, "body": body}
    raw = b"".join(
        json.dumps({"custom_id": f"c{n}", **line}).encode() + b"\n" for n in range(LINES_MAX)
    )
    with running(model_home / "models" / "smollm2-135m", PROGRAMS, OPTIONS) as node:
        node.wait_until(node.answers)
        base = f"http://127.0.0.1:{node.port}/v1"
        client = openai.OpenAI(base_url=base, api_key="none", max_retries=0, timeout=60)
        file = client.files.create(file=("in.jsonl", raw), purpose="batch")
        begin = time.monotonic()
        batch = client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")
        peak, was_killed = 0, False
        while batch.status not in ("completed", "failed", "expired", "cancelled"):
            assert time.monotonic() - begin < LIMIT_S, batch
            time.sleep(0.5)
            process = psutil.Process(node.processes["api"].pid)
            peak = max(peak, process.memory_info().rss)
            try:
                batch = client.batches.retrieve(batch.id)
            except (openai.APIConnectionError, httpx.TransportError):
                continue
            if not was_killed and batch.request_counts.completed > LINES_MAX // 3:
                restart_api(node)
                was_killed = True
        took = time.monotonic() - begin
        said = client.files.content(batch.output_file_id).content
    assert was_killed and (batch.status, batch.request_counts.completed) == ("completed", LINES_MAX)
    names = [json.loads(row)["custom_id"] for row in said.splitlines()]
    assert len(names) == len(set(names)) == LINES_MAX
    with capsys.disabled():
        rate = LINES_MAX / took
        told = f"{took:.0f} s, {rate:.0f} lines/s, api at most {peak >> 20} MiB"
        print(f"\n50,000 lines through a kill: {told}")
    assert peak < 512 << 20
