"""Worker processes killed, frozen and stopped: every request ends once, with the same tokens."""

import signal

import pytest

from tests.workers.queue.fake_engine import expected_text
from workers.wire import END_ENTRY_ID


def moving(node, request_id, num_tokens=3):
    return lambda: node.redis.xlen(node.keys.tokens(request_id)) >= num_tokens


def check_finished(node, request_id, num_tokens):
    node.check_ended(request_id)
    job = node.store.job(request_id)
    assert (job["status"], job["text"]) == ("finished", expected_text(request_id, num_tokens))


def test_many_requests_run_in_one_batch(node, processes):
    ids = [f"r{i}" for i in range(20)]
    for request_id in ids:
        node.route(request_id, max_tokens=10)
    processes()
    node.until_ended(*ids)
    for request_id in ids:
        check_finished(node, request_id, 10)


def test_a_killed_pool_goes_on_from_its_journals(node, processes):
    ids = [f"r{i}" for i in range(6)]
    for request_id in ids:
        node.route(request_id, max_tokens=60)
    first = processes(lease_s=60)
    node.until(lambda: all(moving(node, i)() for i in ids))
    first.kill()
    first.wait()
    before = {i: node.store.tokens(i) for i in ids}
    assert all(tokens[-1][0] != END_ENTRY_ID for tokens in before.values())
    processes(lease_s=60)  # the leases are long: it is the restart that recovers
    node.until_ended(*ids)
    for request_id in ids:
        check_finished(node, request_id, 60)
        assert node.store.tokens(request_id)[: len(before[request_id])] == before[request_id]


def test_a_frozen_pool_comes_back_to_nothing(node, processes):
    node.route("r1", max_tokens=100)
    frozen = processes(lease_s=1.0)
    node.until(moving(node, "r1"))
    frozen.send_signal(signal.SIGSTOP)
    other = processes(lease_s=1.0)
    node.until(lambda: node.store.job("r1")["worker"].endswith("-1"))
    frozen.send_signal(signal.SIGCONT)
    node.until_ended("r1")
    check_finished(node, "r1", 100)
    assert node.redis.xlen("lockstep:rq:results:r1") == 1
    for process in (frozen, other):  # both are well: the next request finds somebody
        assert process.poll() is None
    node.route("r2")
    node.until_ended("r2")


def test_a_stopped_pool_hands_everything_back(node, processes):
    ids = [f"r{i}" for i in range(4)]
    for request_id in ids:
        node.route(request_id, max_tokens=1000)
    first = processes(step_s=0.5)
    node.until(lambda: all(moving(node, i, 1)() for i in ids))
    first.send_signal(signal.SIGTERM)
    assert first.wait(10) == 0
    assert node.queue() == ids
    assert node.leases() == []
    assert [node.status(i) for i in ids] == ["queued"] * 4
    assert node.store.job("r0")["attempts"] == 0


@pytest.mark.parametrize("how", ["kill_at", "raise_at"])
def test_a_request_that_ends_its_worker_ends_as_poison(node, processes, how):
    """Neighbours finish; the killer is delivered max_attempts times, alone from the third on."""
    node.route("good1", max_tokens=30)
    node.route("killer", metadata={how: 0})
    node.route("good2", max_tokens=30)
    while node.status("killer") != "failed":
        process = processes(lease_s=60)
        node.until(
            lambda process=process: process.poll() is not None or node.status("killer") == "failed"
        )
        assert process.poll() in (137, 0, None)
    processes(lease_s=60)  # the last one may have died of it
    node.until_ended("good1", "good2")
    for request_id in ("good1", "good2"):
        check_finished(node, request_id, 30)
    assert node.store.job("killer")["code"] == "poison"
    [(_, letter)] = node.redis.xrange(node.keys.dead)
    assert letter[b"id"] == b"killer" and b"died 4 times" in letter[b"reason"]


def test_a_record_that_cannot_be_read_fails_alone(node, processes):
    node.route("r1")
    node.redis.hset(node.keys.job("r1"), "request", b"\xc1")
    node.route("r2")
    processes()
    node.until_ended("r1", "r2")
    node.check_ended("r1")
    assert (node.status("r1"), node.store.job("r1")["code"]) == ("failed", "bad_record")
    check_finished(node, "r2", 4)


def test_a_hung_engine_loses_its_requests(node, processes):
    node.route("r1", max_tokens=60, metadata={"hang_at": 20})
    node.route("r2", max_tokens=60)
    processes(lease_s=1.0)
    node.until(moving(node, "r2", 3))
    node.redis.hset(node.keys.job("r1"), "cancel", 1)  # so that it hangs only once
    processes(lease_s=1.0)
    node.until_ended("r1", "r2")
    check_finished(node, "r2", 60)
    assert node.status("r1") == "cancelled"


def test_a_running_request_is_cancelled_within_a_step(node, processes):
    node.route("r1", max_tokens=100_000)
    processes()
    node.until(moving(node, "r1"))
    assert node.store.cancel("r1") == "cancelling"
    node.until_ended("r1")
    node.check_ended("r1")
    assert node.status("r1") == "cancelled"
