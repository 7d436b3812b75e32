"""The end of a node: it drains under load, all of it stops, and nothing is lost."""

import time

import httpx

from ingest.health.programs import read_program
from tests.node.running_node import PROGRAMS, wait_for

LONG = ("prompt", "A long story:", "max_tokens", "80", "temperature", "0")
LOAD = 6


def test_sigterm_under_load_drains_in_order_and_the_next_start_goes_on(make_node):
    """Pools hand back, then the store stops; Ctrl-C at the end does the same."""
    node = make_node()
    alone = node.end(node.add(*LONG))["text"]
    asked = [node.add(*LONG, sla=sla) for sla in ("realtime", "standard", "batch") * (LOAD // 3)]
    wait_for(lambda: all(node.num_tokens(i) > 3 for i in asked), "tokens of all")
    node.processes()
    with httpx.stream("POST", f"{node.url}/v1/completions", json=stream_of()) as answer:
        next(answer.iter_lines())
        begin = time.monotonic()
        node.honcho.terminate()
        node.honcho.wait()
    print(f"stopped within {time.monotonic() - begin:.1f} s, {LOAD + 1} requests running")
    check_drained(node)
    node.start()
    jobs = [node.end(request_id) for request_id in asked]
    assert {(job["status"], job["text"]) for job in jobs} == {("finished", alone)}
    assert max(job["attempts"] for job in jobs) <= 1, "no attempt was burnt"
    assert node.log.read_text().count("Lockstep is ready on") == 2, "once at each start"
    node.interrupt()
    assert wait_for(lambda: not node.left_over(), f"gone: {node.left_over()}")


def stream_of():
    return {"prompt": "Once", "max_tokens": 200, "stream": True, "temperature": 0}


def check_drained(node):
    """Everything has stopped by itself, and the store when all others had."""
    assert wait_for(lambda: not node.left_over(), f"gone: {node.left_over()}")
    said = node.log.read_text()
    assert "did not stop in time" not in said and "handed back" in said
    stopped = {name: read_program(node.home, name) for name in PROGRAMS}
    assert {program.state for program in stopped.values()} == {"stopped"}
    last = stopped.pop("store").stopped_ms
    assert last >= max(program.stopped_ms for program in stopped.values())


def test_a_killed_honcho_leaves_no_orphans(make_node):
    node = make_node()
    assert len(node.processes()) > 12  # honcho, its helpers, keepers and programs
    node.honcho.kill()
    node.honcho.wait()
    assert wait_for(lambda: not node.left_over(), f"gone: {node.left_over()}")
