"""Requests of one session run one after another, in the order in which they were routed."""

import random

import msgspec
import pytest

from workers.wire import GROUP, SLA_CLASSES, EndEvent, Keys, Request, SamplingParams
from workers.wire_fields import end_of
from workers.worker_store import WorkerStore

DONE = EndEvent(status="finished", finish_reason="stop")


@pytest.fixture
def store(redis_url):
    store = WorkerStore(redis_url, Keys("lockstep"), lease_s=0.2)
    for sla in SLA_CLASSES:
        store.redis.xgroup_create(store.keys.requests(sla), GROUP, id="0", mkstream=True)
    return store


def request(request_id, session_id="s", **changes):
    fields = {
        "model": "m",
        "token_ids": (),
        "messages": ({"role": "user", "content": request_id},),
        "arrival_ms": 1000,
        "params": SamplingParams(max_tokens=8),
    }
    return Request(id=request_id, session_id=session_id, **(fields | changes))


def route(store, request_id, pool="cpu", **changes):
    stream = store.keys.requests("standard")
    entry_id = store.redis.xadd(stream, {"m": b"?"}).decode()
    store.redis.xreadgroup(GROUP, "router-0", {stream: ">"})
    asked = request(request_id, **changes)
    return store.route(sla="standard", entry_id=entry_id, request=asked, pool=pool, reason="only")


def queue(store, name="cpu"):
    return [item.decode() for item in store.redis.lrange(store.keys.queue(name), 0, -1)]


def waiting(store, session="s"):
    return [i.decode() for i in store.redis.lrange(store.keys.session_waiting(session), 0, -1)]


def claim(store, pool="cpu", room=8):
    return store.claim(pool, f"w-{pool}", room)


def finish(store, item, pool="cpu"):
    return store.finish(pool, f"w-{pool}", item, DONE, "text")


def routed(store, *request_ids, **changes):
    return [route(store, request_id, **changes) for request_id in request_ids]


def test_the_second_request_of_a_session_waits_for_the_first(store):
    assert routed(store, "r1", "r2", "r3") == ["routed", "waits", "waits"]
    assert (queue(store), waiting(store)) == (["r1"], ["r2", "r3"])
    assert store.job("r2")["status"] == "queued"
    assert store.job("r2")["reason"] == "only; waits for its session, behind 1"
    assert store.job("r3")["reason"] == "only; waits for its session, behind 2"


def test_requests_of_other_sessions_and_tenants_do_not_wait(store):
    assert route(store, "r1") == "routed"
    assert route(store, "r2", session_id="other") == "routed"
    assert route(store, "t--r3", tenant="t") == "routed"
    assert route(store, "r4", session_id=None, token_ids=(1,), messages=()) == "routed"
    assert store.session("t--s")["holder"] == "t--r3"


def test_the_end_of_the_holder_lets_the_next_one_in(store):
    routed(store, "r1", "r2", "r3")
    [item] = claim(store)
    assert (item.job_id, queue(store)) == ("r1", [])
    assert finish(store, item)
    assert (queue(store), waiting(store)) == (["r2"], ["r3"])
    assert store.job("r2")["reason"] == "only"
    assert store.redis.llen(store.keys.bell("cpu")) == 1


def test_each_claim_has_a_higher_fence(store):
    routed(store, "r1", "r2")
    [first] = claim(store)
    store.hand_back("cpu", [first])
    [again] = claim(store)
    finish(store, again)
    [second] = claim(store)
    assert [first.fence, again.fence, second.fence] == [1, 2, 3]
    said = store.session("s")
    assert (said["fence"], said["pool"], said["home"]) == (3, "cpu", "w-cpu")


def test_what_belongs_to_no_session_has_no_fence(store):
    route(store, "r1", session_id=None, token_ids=(1,), messages=())
    assert claim(store)[0].fence == 0


def end_cancelled(store):
    assert store.cancel("r1") == "cancelled"


def end_expired(store):
    store.redis.hset(store.keys.job("r1"), "deadline_ms", 1)
    assert [item.job_id for item in claim(store)] == ["r2"]
    store.recover("cpu", "w-cpu")


def end_poisonous(store):
    store.redis.hset(store.keys.job("r1"), "attempts", store.max_attempts)
    assert [item.job_id for item in claim(store)] == ["r2"]
    store.recover("cpu", "w-cpu")


def end_cancelled_while_it_runs(store):
    [item] = claim(store)
    store.cancel("r1")
    store.hand_back("cpu", [item])


def end_cancelled_by_rq(store):
    from rq.job import Job

    from workers.queue.serializer import MsgpackSerializer

    Job.fetch("r1", connection=store.redis, serializer=MsgpackSerializer).cancel()
    store.reconcile(force=True)


def end_poisonous_when_reaped(store):
    claim(store)
    store.redis.hset(store.keys.job("r1"), "attempts", store.max_attempts)
    store.recover("cpu", "w-cpu")


ENDS = [
    end_cancelled,
    end_expired,
    end_poisonous,
    end_cancelled_while_it_runs,
    end_cancelled_by_rq,
    end_poisonous_when_reaped,
]


@pytest.mark.parametrize("end", ENDS, ids=lambda end: end.__name__)
def test_whatever_ends_the_holder_lets_the_next_one_in(store, end):
    routed(store, "r1", "r2", "r3")
    end(store)
    assert store.job("r1")["status"] in ("cancelled", "expired", "failed")
    assert (queue(store), waiting(store)) == (["r2"], ["r3"])
    assert store.session("s")["holder"] == "r2"


def test_the_last_one_leaves_a_session_that_nobody_holds(store):
    routed(store, "r1")
    finish(store, claim(store)[0])
    assert "holder" not in store.session("s")
    assert route(store, "r2") == "routed"


def test_a_waiting_one_that_is_cancelled_leaves_the_list(store):
    routed(store, "r1", "r2", "r3")
    assert store.cancel("r2") == "cancelled"
    assert (queue(store), waiting(store)) == (["r1"], ["r3"])
    assert store.redis.zrange(store.keys.waiting, 0, -1) == [b"r3"]


def test_a_waiting_one_that_expires_leaves_the_list(store):
    routed(store, "r1", "r3")
    route(store, "r2", deadline_ms=1)
    store.reconcile(force=True)
    assert store.job("r2")["status"] == "expired"
    assert (queue(store), waiting(store)) == (["r1"], ["r3"])


def test_whoever_waits_and_is_late_ends_when_the_routers_ask(store):
    routed(store, "r1", "r3")
    route(store, "r2", deadline_ms=1)
    route(store, "r4", session_id="other", deadline_ms=1)
    route(store, "r5", session_id=None, token_ids=(1,), messages=(), deadline_ms=1 << 50)
    assert sorted(store.expire_late()) == ["r2", "r4"]
    assert {store.job(i)["status"] for i in ("r2", "r4")} == {"expired"}
    assert store.job("r2")["error"].endswith("passed while it waited for its session")
    assert (queue(store), waiting(store)) == (["r1", "r5"], ["r3"])
    assert store.expire_late() == []


def test_a_running_one_that_is_late_is_its_pools_business(store):
    route(store, "r1", deadline_ms=(1 << 50))
    [item] = claim(store)
    store.redis.zadd(store.keys.deadlines, {"r1": 1, "nobody": 1})
    assert store.expire_late() == []
    assert finish(store, item)
    assert store.redis.zcard(store.keys.deadlines) == 0


def test_one_that_expired_while_it_waited_is_not_run(store):
    routed(store, "r1")
    route(store, "r2", deadline_ms=1)
    routed(store, "r3")
    finish(store, claim(store)[0])
    assert [item.job_id for item in claim(store)] == ["r3"]
    assert store.job("r2")["status"] == "expired"


def test_a_holder_that_is_handed_back_keeps_the_session(store):
    routed(store, "r1", "r2")
    store.hand_back("cpu", claim(store))
    assert (queue(store), waiting(store)) == (["r1"], ["r2"])


def test_the_end_names_the_session(store):
    routed(store, "r1")
    [item] = claim(store)
    asked = msgspec.structs.replace(item.request, token_ids=(1, 2, 3), composed=True)
    assert store.compose(item, asked, forked_at=2)
    finish(store, item)
    [(_, end)] = store.tokens("r1")
    assert (end.session_id, end.forked_at) == ("s", 2)
    assert end_of(store.job("r1")).forked_at == 2


# --- moving ---


def test_a_request_is_handed_over_to_the_front_of_another_pool(store):
    routed(store, "r1", "r2")
    route(store, "r9", pool="gpu", session_id="other")
    [item] = claim(store)
    assert store.hand_over("cpu", item, "gpu")
    assert (queue(store, "gpu"), waiting(store)) == (["r1", "r9"], ["r2"])
    job = store.job("r1")
    assert (job["pool"], job["attempts"]) == ("gpu", 0)
    assert job["reason"] == "gpu: handed over by cpu"
    again, _ = claim(store, "gpu")
    assert (again.job_id, again.fence) == ("r1", 2)
    assert store.session("s")["pool"] == "gpu"


def test_handing_over_again_is_the_same_hand_over(store):
    routed(store, "r1")
    [item] = claim(store)
    assert store.hand_over("cpu", item, "gpu") and store.hand_over("cpu", item, "gpu")
    assert queue(store, "gpu") == ["r1"]
    [mine] = claim(store, "gpu")
    assert not store.hand_over("cpu", item, "gpu")
    assert finish(store, mine, "gpu")


def test_a_lost_lease_hands_nothing_over(store):
    routed(store, "r1")
    [item] = claim(store)
    store.recover("cpu", "w-cpu")
    assert not store.hand_over("cpu", item, "gpu")
    assert (queue(store), queue(store, "gpu")) == (["r1"], [])


def test_a_cancelled_request_ends_instead_of_being_handed_over(store):
    routed(store, "r1", "r2")
    [item] = claim(store)
    store.cancel("r1")
    assert not store.hand_over("cpu", item, "gpu")
    assert store.job("r1")["status"] == "cancelled"
    assert queue(store) == ["r2"]


def test_rq_counts_a_request_where_it_ended(store):
    routed(store, "r1")
    [item] = claim(store)
    store.hand_over("cpu", item, "gpu")
    finish(store, claim(store, "gpu")[0], "gpu")
    assert store.redis.zrange("lockstep:rq:finished:gpu", 0, -1) == [b"r1"]


def test_a_running_request_is_moved_by_its_pool(store):
    routed(store, "r1")
    claim(store)
    listener = store.redis.pubsub(ignore_subscribe_messages=True)
    listener.subscribe(store.keys.control)
    listener.get_message(timeout=5)
    assert store.move("r1", "gpu") == "moving"
    assert listener.get_message(timeout=5)["data"] == b"move r1 gpu"
    listener.close()


def test_a_queued_request_moves_at_once(store):
    routed(store, "r1")
    assert store.move("r1", "gpu") == "moved"
    assert (queue(store), queue(store, "gpu")) == ([], ["r1"])
    assert store.redis.llen(store.keys.bell("gpu")) == 1


def test_one_that_waits_for_its_session_moves_too(store):
    routed(store, "r1", "r2")
    assert store.move("r2", "gpu") == "moved"
    assert (queue(store), queue(store, "gpu"), waiting(store)) == (["r1"], [], ["r2"])
    finish(store, claim(store)[0])
    assert queue(store, "gpu") == ["r2"]


def test_what_is_there_already_stays(store):
    routed(store, "r1")
    assert store.move("r1", "cpu") == "moved"
    assert queue(store) == ["r1"]


def test_what_ended_or_is_unknown_is_not_moved(store):
    routed(store, "r1")
    store.cancel("r1")
    assert [store.move("r1", "gpu"), store.move("r2", "gpu")] == ["ended", "unknown"]
    with pytest.raises(ValueError, match="pool: must be one of"):
        store.move("r1", "tpu")


# --- what is known of a session ---


def test_a_composed_prompt_is_written_by_its_holder_only(store):
    routed(store, "r1")
    [item] = claim(store)
    asked = msgspec.structs.replace(item.request, token_ids=(1, 2, 3), composed=True)
    assert "prompt_tokens" not in store.job("r1")
    assert store.compose(item, asked) and store.compose(item, asked)
    job = store.job("r1")
    assert (job["prompt_tokens"], "forked_at" in job) == (3, False)
    assert msgspec.msgpack.decode(job["request"], type=Request) == asked
    store.recover("cpu", "w-cpu")
    [mine] = claim(store)
    assert mine.request == asked
    assert not store.compose(item, request("r1"))


def test_notes_of_a_session_are_read_back(store):
    assert store.session("s") == {}
    store.session_note("s", writing="w-cpu", tokens=17, generation=3, used_ms=5)
    said = store.session("s")
    assert (said["writing"], said["tokens"], said["generation"]) == ("w-cpu", 17, 3)
    assert said["waiting"] == 0


def test_every_key_of_a_session_expires(store):
    routed(store, "r1", "r2")
    finish(store, claim(store)[0])
    store.session_note("n", tokens=1)
    keys = [store.keys.session("s"), store.keys.session("n"), store.keys.waiting]
    route(store, "r3")
    keys.append(store.keys.session_waiting("s"))
    assert all(store.redis.ttl(key) > 0 for key in keys)


def test_all_keys_of_a_session_lie_in_one_slot(redis_url):
    store = WorkerStore(redis_url, Keys("{t7}"))
    for sla in SLA_CLASSES:
        store.redis.xgroup_create(store.keys.requests(sla), GROUP, id="0", mkstream=True)
    routed(store, "r1", "r2", "r3")
    finish(store, claim(store)[0])
    store.session_note("s", tokens=1)
    assert {key.decode()[:5] for key in store.redis.scan_iter()} == {"{t7}:"}


# --- anything, in any order ---


@pytest.mark.parametrize("seed", range(12))
def test_every_request_ends_once_and_in_order_whatever_happens(store, seed):
    """Workers die, requests are cancelled and moved, keys get lost; each session goes on."""
    rng = random.Random(seed)
    order = {"a": [], "b": [], "c": []}  # ids by session, as routed
    ran: list[str] = []
    held: dict[str, tuple[str, object]] = {}
    for number in range(120):
        act = rng.choice(["route", "route", "claim", "claim", "finish", "cancel", "move", "die"])
        if act == "route":
            session, request_id = rng.choice(list(order)), f"r{number}"
            order[session].append(request_id)
            route(store, request_id, pool=rng.choice(["cpu", "gpu"]), session_id=session)
        elif act == "claim":
            pool = rng.choice(["cpu", "gpu"])
            for item in claim(store, pool, rng.randint(1, 3)):
                held[item.job_id] = (pool, item)
            of = [item.request.session_id for _, item in held.values()]
            assert len(of) == len(set(of)), "two of one session run at once"
        elif act == "finish" and held:
            pool, item = held.pop(rng.choice(list(held)))
            if finish(store, item, pool):
                ran.append(item.job_id)
        elif act == "cancel" and number:
            store.cancel(f"r{rng.randrange(number)}")
        elif act == "move" and number:
            name = f"r{rng.randrange(number)}"
            if store.move(name, pool := rng.choice(["cpu", "gpu"])) == "moving" and name in held:
                store.hand_over(*held.pop(name), pool)
        elif act == "die":
            pool = rng.choice(["cpu", "gpu"])
            store.recover(pool, f"w-{pool}")
            held = {name: (p, item) for name, (p, item) in held.items() if p != pool}
    for _ in range(200):
        for pool in ("cpu", "gpu"):
            store.recover(pool, f"w-{pool}")
            for item in claim(store, pool):
                assert finish(store, item, pool)
                ran.append(item.job_id)
        if not store.redis.zcard(store.keys.active):
            break
    assert store.redis.zcard(store.keys.active) == 0
    assert store.redis.zcard(store.keys.waiting) == 0
    for session, ids in order.items():
        mine = [request_id for request_id in ran if request_id in ids]
        assert mine == sorted(mine, key=ids.index) and len(mine) == len(set(mine))
        assert all(store.job(i)["status"] in ("finished", "cancelled", "failed") for i in ids)
        assert "holder" not in store.session(session)
