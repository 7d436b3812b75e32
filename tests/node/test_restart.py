"""`lockstep restart` on a whole node under load: two pools, one after the other."""

import subprocess
import sys
from threading import Event, Thread

import pytest

from tests.node.running_node import wait_for

ASKED = ("prompt", "A long story:", "max_tokens", "60", "temperature", "0")


@pytest.mark.slow
def test_both_pools_are_restarted_under_load_and_no_request_fails(make_node):
    node = make_node(LOCKSTEP_GPU="cpu", LOCKSTEP_THREADS="1")
    wait_for(lambda: len(node.store.loads()) == 2, "two pools")
    alone = node.end(node.add(*ASKED))["text"]
    ids, enough = [], Event()

    def load():
        while not enough.wait(0.5):
            ids.append(node.add(*ASKED))

    loading = Thread(target=load)
    loading.start()
    try:
        wait_for(lambda: len(ids) > 4, "load")
        command = [sys.executable, "-m", "ingest.command.main", "restart", "gpu", "cpu"]
        done = subprocess.run(command, env=node.environment, capture_output=True, text=True)
    finally:
        enough.set()
        loading.join()
    assert done.returncode == 0, done.stderr
    jobs = [node.end(request_id) for request_id in ids]
    assert {(job["status"], job["text"]) for job in jobs} == {("finished", alone)}
    print(f"{len(jobs)} requests, {sum(job.get('moves', 0) for job in jobs)} moves\n{done.stdout}")
    log = node.log.read_text()
    assert log.count("handed back") + log.count("ended (exit code 0)") >= 2
