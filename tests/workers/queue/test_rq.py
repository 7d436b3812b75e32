"""Our jobs and workers seen through RQ's own eyes: its library and its command line."""

import os
import subprocess
import sys

from rq import Queue
from rq.command import send_shutdown_command, send_stop_job_command
from rq.job import Job
from rq.registry import FailedJobRegistry, FinishedJobRegistry, StartedJobRegistry
from rq.suspension import resume, suspend
from rq.worker import Worker

from tests.workers.queue.fake_engine import FakeEngine, expected_text
from workers.queue.pool_worker import PoolWorker
from workers.queue.pulse import Pulse
from workers.queue.runner import after_layer
from workers.queue.serializer import MsgpackSerializer

LONG = 100_000


def fetch(node, job_id):
    return Job.fetch(job_id, connection=node.redis, serializer=MsgpackSerializer)


def rq(node, *arguments):
    """The rq command, as its users run it."""
    environment = os.environ | {"RQ_KEY_PREFIX": "lockstep:rq"}
    command = [sys.executable, "-c", "from rq.cli import main; main()", *arguments]
    done = subprocess.run(
        [*command, "--url", node.url], env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def started(node, *request_ids):
    node.until(lambda: all(node.redis.xlen(node.keys.tokens(i)) > 1 for i in request_ids))


def burst_worker(node):
    pulse = Pulse()
    engine = FakeEngine(after_layer(pulse))
    return PoolWorker(node.store, "cpu", engine, name="burst", capacity=8, pulse=pulse)


def test_rq_info_shows_queue_and_worker(node, processes):
    node.route("r1", max_tokens=LONG)
    processes(capacity=1)
    started(node, "r1")
    node.route("r2")
    shown = rq(node, "info", "--raw")
    assert "queue cpu 1" in shown
    assert "-cpu-0" in shown and "busy" in shown


def test_rqs_library_knows_the_worker(node, processes):
    node.route("r1", max_tokens=LONG)
    processes()
    started(node, "r1")
    [worker] = Worker.all(connection=node.redis)
    assert worker.queue_names() == ["cpu"] and worker.get_state() == "busy"
    assert [e.job_id for e in worker.get_current_executions()] == ["r1"]
    assert worker.last_heartbeat


def test_what_rq_registers_again_expires(node, processes):
    """Found by tests/chaos: a store that lost its workers' names got them back for ever."""
    processes()
    node.until(lambda: node.redis.exists("lockstep:rq:workers:cpu"))
    node.redis.flushall()
    node.until(lambda: node.redis.exists("lockstep:rq:workers:cpu"))
    node.until(lambda: node.redis.ttl("lockstep:rq:workers:cpu") > 0)
    node.until(lambda: node.redis.ttl("lockstep:rq:workers") > 0)


def test_the_registries_follow_a_job(node, processes):
    node.route("good", max_tokens=3)
    node.route("long", max_tokens=LONG)
    processes()
    started(node, "long")
    node.until_ended("good")
    lists = {"name": "cpu", "connection": node.redis, "serializer": MsgpackSerializer}
    assert FinishedJobRegistry(**lists).get_job_ids() == ["good"]
    assert StartedJobRegistry(**lists).get_job_ids() == ["long"]
    assert FailedJobRegistry(**lists).get_job_ids() == []
    assert fetch(node, "good").get_status() == "finished"
    assert fetch(node, "good").return_value()["output_tokens"] == 3
    assert fetch(node, "long").get_status() == "started"
    assert fetch(node, "good").ended_at >= fetch(node, "good").started_at


def test_rqs_stop_command_ends_a_job(node, processes):
    node.route("r1", max_tokens=LONG)
    processes()
    started(node, "r1")
    send_stop_job_command(node.redis, "r1", serializer=MsgpackSerializer)
    node.until_ended("r1")
    node.check_ended("r1")
    assert node.status("r1") == "cancelled" and fetch(node, "r1").is_canceled


def test_rqs_cancel_ends_a_running_job(node, processes):
    node.route("r1", max_tokens=LONG)
    processes()
    started(node, "r1")
    fetch(node, "r1").cancel()
    node.until_ended("r1")
    node.check_ended("r1")
    assert node.status("r1") == "cancelled"


def test_rqs_cancel_ends_a_waiting_job(node):
    node.route("r1")
    fetch(node, "r1").cancel()
    assert node.queue() == []
    assert node.store.reconcile() == []
    node.check_ended("r1")
    assert node.status("r1") == "cancelled"


def test_rqs_shutdown_command_hands_back(node, processes):
    node.route("r1", max_tokens=LONG)
    process = processes()
    started(node, "r1")
    [worker] = Worker.all(connection=node.redis)
    send_shutdown_command(node.redis, worker.name)
    assert process.wait(20) == 0
    assert node.queue() == ["r1"]
    assert Worker.all(connection=node.redis) == []


def test_a_suspended_pool_takes_nothing_new(node, processes):
    suspend(node.redis)
    node.route("r1", max_tokens=3)
    processes()
    node.until(lambda: [w.get_state() for w in Worker.all(connection=node.redis)] == ["suspended"])
    assert node.status("r1") == "queued"
    resume(node.redis)
    node.until_ended("r1")


def test_rqs_cleanup_leaves_late_leases_to_us(node):
    """RQ would put it to the back of the queue and burn a retry; monitoring must not do that."""
    node.route("r1")
    node.store.lease_s = 0.0
    node.store.claim("cpu", "w1", 1)
    queue = Queue("cpu", connection=node.redis, serializer=MsgpackSerializer)
    assert queue.started_job_registry.count == 1
    rq(node, "info")
    assert queue.started_job_registry.count == 1
    assert node.queue() == []
    assert node.store.reap("cpu") == ["r1"]


def test_what_rq_empties_comes_back(node):
    for request_id in ("r1", "r2"):
        node.route(request_id)
    rq(node, "empty", "cpu", "--serializer", "workers.queue.serializer.MsgpackSerializer")
    assert node.queue() == []
    assert sorted(node.store.reconcile()) == ["r1", "r2"]


def test_a_burst_runs_what_there_is_and_quits(node):
    ids = [f"r{i}" for i in range(12)]
    for request_id in ids:
        node.route(request_id, max_tokens=5)
    worker = burst_worker(node)
    assert worker.work(burst=True) is True
    assert worker.engine.peak == 8
    for request_id in ids:
        node.check_ended(request_id)
        assert node.store.job(request_id)["text"] == expected_text(request_id, 5)
    assert int(node.redis.hget(node.keys.worker("burst"), "successful_job_count")) == 12


def test_a_burst_looks_again_when_the_last_end_is_written_behind_its_back(node):
    """The writer gave the last place free after the claim that found none: others still wait."""

    class FullAtFirst(PoolWorker):
        looks = 0

        def room(self):
            self.looks += 1
            return 0 if self.looks == 1 else super().room()

    node.route("r1", max_tokens=5)
    pulse = Pulse()
    engine = FakeEngine(after_layer(pulse))
    worker = FullAtFirst(node.store, "cpu", engine, name="burst", capacity=8, pulse=pulse)
    assert worker.work(burst=True) is True
    node.check_ended("r1")


def test_a_burst_with_nothing_to_do_quits(node):
    assert burst_worker(node).work(burst=True) is False
