"""Claim, beat, journal, finish, hand back, recover, reap, reconcile: each script, case by case."""

import pytest

from tests.workers.queue.conftest import Node
from workers.wire import END_ENTRY_ID, EndEvent, TokenEvent, Usage, WebhookTarget
from workers.worker_store import Claimed

DONE = EndEvent(
    status="finished",
    finish_reason="stop",
    text="!",
    digest="ab",
    usage=Usage(prompt_tokens=2, output_tokens=2),
)


def claim(node, worker="w1", room=8, **more):
    return node.store.claim("cpu", worker, room, **more)


def ids(claimed):
    return [item.job_id for item in claimed]


def tokens(first, last):
    return [
        TokenEvent(index=i, token_id=i, text=f" {i}", digest=f"{i}") for i in range(first, last)
    ]


def journal(node, item, first, last):
    return node.store.journal("cpu", [(item, tokens(first, last))])


def finish(node, item, end=DONE, text=" 0 1!", worker="w1"):
    return node.store.finish("cpu", worker, item, end, text)


def told(node, request_id):
    return [entry_id for entry_id, _ in node.store.tokens(request_id)]


@pytest.fixture
def three(node):
    for i in (1, 2, 3):
        node.route(f"r{i}")
    return node


# --- claim ---


def test_a_claim_takes_as_many_as_there_is_room_for(three):
    assert ids(claim(three, room=2)) == ["r1", "r2"]
    assert ids(claim(three, room=2)) == ["r3"]
    assert claim(three) == []


def test_what_is_claimed_is_leased_and_runs(three):
    [item] = claim(three, room=1)
    job = three.store.job("r1")
    assert (job["status"], job["worker"], job["attempts"]) == ("running", "w1", 1)
    assert three.leases() == [f"r1:{item.execution_id}"]
    assert (item.request.id, item.attempts) == ("r1", 1)


def test_a_claim_rings_for_what_it_left(three):
    three.redis.delete(three.keys.bell("cpu"))
    claim(three, room=2)
    assert three.redis.llen(three.keys.bell("cpu")) == 1
    three.redis.delete(three.keys.bell("cpu"))
    claim(three, room=2)
    assert three.redis.llen(three.keys.bell("cpu")) == 0


def test_a_suspended_queue_gives_nothing(three):
    three.redis.set(three.keys.rq_suspended, 1)
    assert claim(three) == []
    assert three.queue() == ["r1", "r2", "r3"]


def test_what_expired_while_it_waited_ends_instead(node):
    node.route("late", deadline_ms=1)
    node.route("good", deadline_ms=2**52)
    assert ids(claim(node)) == ["good"]
    node.check_ended("late")
    assert (node.status("late"), node.store.job("late")["code"]) == ("expired", "expired")


def test_an_id_that_was_queued_twice_is_claimed_once(node):
    node.route("r1")
    node.redis.rpush(node.keys.queue("cpu"), "r1")
    assert ids(claim(node)) == ["r1"]


def test_what_ended_is_passed_over(node):
    node.route("r1")
    [item] = claim(node)
    finish(node, item)
    node.redis.rpush(node.keys.queue("cpu"), "r1")  # as `rq requeue` does
    node.redis.hset(node.keys.rq_job("r1"), "status", "queued")
    assert claim(node) == []
    assert node.redis.hget(node.keys.rq_job("r1"), "status") == b"finished"


def test_an_id_that_is_none_of_ours_is_passed_over(node):
    node.redis.rpush(node.keys.queue("cpu"), "foreign")
    node.route("r1")
    assert ids(claim(node)) == ["r1"]


def dies(node, times):
    """Workers die in the middle of it, so many times."""
    for _ in range(times):
        claim(node)
        node.store.recover("cpu", "w1")


@pytest.mark.parametrize(("deaths", "alone"), [(0, False), (1, False), (2, True), (3, True)])
def test_a_request_whose_workers_died_twice_runs_alone(node, deaths, alone):
    node.route("r1")
    dies(node, deaths)
    node.route("r2")
    [first, *others] = claim(node)
    assert (first.job_id, first.alone, ids(others)) == ("r1", alone, [] if alone else ["r2"])


def test_a_suspect_waits_for_an_idle_worker(node):
    node.route("r1")
    dies(node, 2)
    assert claim(node, idle=False) == []
    assert node.queue() == ["r1"]


def test_the_fifth_delivery_is_poison(node):
    node.route("r1", webhook=WebhookTarget(url="http://127.0.0.1:1/"))
    dies(node, 4)
    assert claim(node) == []
    node.check_ended("r1")
    job = node.store.job("r1")
    assert (job["status"], job["code"]) == ("failed", "poison")
    assert node.redis.xlen(node.keys.dead) == 1
    assert node.queue("webhooks") == ["wh-r1-1"]


# --- beat ---


def test_a_beat_renews_the_lease(node):
    node.route("r1")
    [item] = claim(node)
    node.expire_leases()
    assert node.store.beat("cpu", "w1", [item]).lost == []
    assert node.store.reap("cpu") == []


def test_a_beat_tells_what_was_taken_away(node):
    node.route("r1")
    [item] = claim(node)
    node.expire_leases()
    node.store.reap("cpu")
    assert node.store.beat("cpu", "w1", [item]).lost == ["r1"]
    claim(node, worker="w2")
    assert node.store.beat("cpu", "w1", [item]).lost == ["r1"]


def test_a_beat_tells_what_was_cancelled(node):
    node.route("r1")
    [item] = claim(node)
    node.store.cancel("r1")
    reply = node.store.beat("cpu", "w1", [item])
    assert (reply.lost, reply.cancelled) == ([], ["r1"])


def test_a_beat_does_not_make_a_worker_known(node):
    """A hash without an expiry would be left behind."""
    assert not node.store.beat("cpu", "w1", []).is_known
    assert not node.redis.exists(node.keys.worker("w1"))
    node.redis.hset(node.keys.worker("w1"), "state", "busy")  # all that an emptied store has of it
    assert not node.store.beat("cpu", "w1", []).is_known


# --- journal and finish ---


def test_tokens_are_written_in_their_places(node):
    node.route("r1")
    [item] = claim(node)
    assert journal(node, item, 0, 2) == []
    assert journal(node, item, 2, 3) == []
    assert told(node, "r1") == ["0-1", "0-2", "0-3"]


def test_tokens_written_twice_are_there_once(node):
    node.route("r1")
    [item] = claim(node)
    journal(node, item, 0, 3)
    assert journal(node, item, 0, 4) == []
    assert told(node, "r1") == ["0-1", "0-2", "0-3", "0-4"]


def test_one_call_writes_the_tokens_of_many(three):
    items = claim(three)
    assert three.store.journal("cpu", [(item, tokens(0, i)) for i, item in enumerate(items)]) == []
    assert [len(told(three, f"r{i}")) for i in (1, 2, 3)] == [0, 1, 2]


def test_without_the_lease_nothing_is_written(three):
    first, second, third = claim(three)
    three.store.hand_back("cpu", [second])
    lost = three.store.journal("cpu", [(item, tokens(0, 1)) for item in (first, second, third)])
    assert lost == ["r2"]
    assert [told(three, f"r{i}") for i in (1, 2, 3)] == [["0-1"], [], ["0-1"]]


def test_a_new_token_clears_the_name_of_a_suspect(node):
    node.route("r1")
    dies(node, 3)
    [item] = claim(node)
    journal(node, item, 0, 1)
    node.store.recover("cpu", "w1")
    assert claim(node)[0].attempts == 1


def test_a_finished_request_is_finished_everywhere(node):
    node.route("r1", metadata={"a": 1})
    [item] = claim(node)
    journal(node, item, 0, 2)
    node.redis.hset(node.keys.worker("w1"), "state", "busy")
    assert finish(node, item) is True
    node.check_ended("r1")
    job = node.store.job("r1")
    assert (job["status"], job["text"], job["finish_reason"]) == ("finished", " 0 1!", "stop")
    assert (job["prompt_tokens"], job["output_tokens"], job["digest"]) == (2, 2, "ab")
    assert node.redis.zscore("lockstep:rq:finished:cpu", "r1")
    assert node.redis.hget(node.keys.worker("w1"), "successful_job_count") == b"1"
    assert node.redis.xlen("lockstep:rq:results:r1") == 1
    for key in ("job:r1", "tokens:r1", "rq:job:r1", "rq:results:r1"):
        assert 0 < node.redis.ttl(f"lockstep:{key}") <= node.store.result_ttl_s


def test_finishing_again_changes_nothing(node):
    """A reply that was lost on its way is asked for again."""
    node.route("r1", webhook=WebhookTarget(url="http://127.0.0.1:1/"))
    [item] = claim(node)
    finish(node, item)
    before = node.redis.hgetall(node.keys.job("r1"))
    assert finish(node, item, text="other") is True
    assert node.redis.hgetall(node.keys.job("r1")) == before
    assert node.queue("webhooks") == ["wh-r1-1"]


def test_no_token_follows_the_end(node):
    node.route("r1")
    [item] = claim(node)
    finish(node, item)
    assert journal(node, item, 0, 1) == ["r1"]
    assert told(node, "r1") == [END_ENTRY_ID]


def test_a_taken_over_request_is_finished_by_its_new_owner_only(node):
    node.route("r1")
    [old] = claim(node)
    node.expire_leases()
    node.store.reap("cpu")
    [new] = claim(node, worker="w2")
    assert finish(node, old, text="old") is False
    assert finish(node, new, text="new", worker="w2") is True
    assert finish(node, old, text="old") is False
    assert node.store.job("r1")["text"] == "new"


@pytest.mark.parametrize("status", ["failed", "cancelled", "expired"])
def test_other_ends_are_ends_too(node, status):
    node.route("r1")
    [item] = claim(node)
    assert finish(node, item, EndEvent(status=status, error="why", code="c"), text="")
    node.check_ended("r1")
    assert (node.status("r1"), node.store.job("r1")["error"]) == (status, "why")


# --- hand back, recover, reap ---


def test_what_is_handed_back_comes_first_and_in_order(three):
    items = claim(three, room=2)
    assert three.store.hand_back("cpu", items)
    assert three.queue() == ["r1", "r2", "r3"]
    assert three.store.job("r1")["attempts"] == 0
    assert three.leases() == []


def test_handing_back_what_is_lost_does_nothing(node):
    node.route("r1")
    [old] = claim(node)
    node.expire_leases()
    node.store.reap("cpu")
    [new] = claim(node, worker="w2")
    assert node.store.hand_back("cpu", [old]) == []
    assert node.status("r1") == "running"
    assert node.store.beat("cpu", "w2", [new]).lost == []


def test_a_cancelled_request_ends_when_it_is_handed_back(node):
    node.route("r1")
    [item] = claim(node)
    journal(node, item, 0, 2)
    node.store.cancel("r1")
    assert node.store.hand_back("cpu", [item]) == []
    node.check_ended("r1")
    job = node.store.job("r1")
    assert (job["status"], job["text"], job["output_tokens"]) == ("cancelled", " 0 1", 2)


def test_a_successor_recovers_what_its_predecessor_held(three):
    claim(three, worker="w1", room=2)
    assert three.store.recover("cpu", "w2") == []
    assert set(three.store.recover("cpu", "w1")) == {"r1", "r2"}
    assert three.queue() == ["r1", "r2", "r3"]
    assert three.store.job("r1")["attempts"] == 1


def test_leases_that_run_are_not_reaped(three):
    claim(three)
    assert three.store.reap("cpu") == []


def test_leases_that_ran_out_are_reaped(three):
    claim(three, room=2)
    three.expire_leases()
    assert sorted(three.store.reap("cpu")) == ["r1", "r2"]
    assert three.queue() == ["r1", "r2", "r3"]


def test_a_lease_runs_by_the_servers_clock(redis_url):
    node = Node(redis_url, lease_s=0.0)
    node.route("r1")
    claim(node)
    node.until(lambda: node.store.reap("cpu") == ["r1"], seconds=5)


# --- reconcile ---


def lose_by_pop(node):
    node.route("r1")
    node.redis.lpop(node.keys.queue("cpu"))


def lose_by_deleting_rqs_record(node):
    lose_by_pop(node)
    node.redis.delete(node.keys.rq_job("r1"))


def lose_the_lease(node):
    node.route("r1")
    claim(node)
    node.redis.delete(node.keys.wip("cpu"))


@pytest.mark.parametrize("lose", [lose_by_pop, lose_by_deleting_rqs_record, lose_the_lease])
def test_a_lost_request_is_put_back(node, lose):
    lose(node)
    assert node.store.reconcile() == ["r1"]
    assert ids(claim(node)) == ["r1"]
    assert node.redis.hget(node.keys.rq_job("r1"), "status") == b"started"


def test_nothing_is_put_back_that_waits_or_runs(three):
    claim(three, room=1)
    assert three.store.reconcile(force=True) == []
    assert three.queue() == ["r2", "r3"]


def test_nothing_is_put_back_that_waits_at_another_node(node):
    node.route("r1", pool="cpu@a")
    assert node.store.reconcile(force=True) == []
    assert node.queue("cpu@a") == ["r1"]


def test_a_stray_id_hides_a_lost_one_only_from_the_quick_look(node):
    lose_by_pop(node)
    node.redis.rpush(node.keys.queue("gpu"), "stray")
    assert node.store.reconcile() == []
    assert node.store.reconcile(force=True) == ["r1"]


def test_claimed_alone_is_said_by_the_attempts():
    assert not Claimed("wh-r1-1", "e", 9, None).alone


def test_rqs_registries_forget_what_expired(node):
    node.route("r1")
    [item] = claim(node)
    finish(node, item)
    node.redis.zadd("lockstep:rq:finished:cpu", {"old": 1})
    node.store.forget_jobs()
    assert node.redis.zrange("lockstep:rq:finished:cpu", 0, -1) == [b"r1"]


def test_a_record_that_cannot_be_read_is_told(node):
    node.route("r1")
    node.redis.hset(node.keys.job("r1"), "request", b"\xc1")
    [item] = claim(node)
    assert (item.job_id, item.request) == ("r1", None)


def test_everything_of_a_request_expires(node):
    node.route("r1", webhook=WebhookTarget(url="http://127.0.0.1:1/"))
    node.route("r2")
    first, _second = claim(node)
    journal(node, first, 0, 2)
    finish(node, first)
    node.store.keep()
    kept = [key for key in node.redis.scan_iter() if node.redis.ttl(key) < 0]
    assert kept == []
