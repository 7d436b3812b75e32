"""What somebody deleted or overwrote of a session's keys stops nobody, and costs no order."""

import pytest

from tests.workers.test_session_order import claim, finish, queue, route, routed, store, waiting

__all__ = ["store"]  # a fixture


def vanish(store):
    store.redis.delete(store.keys.job("r1"))


def leave_the_queue(store):
    store.redis.delete(store.keys.queue("cpu"))


def lose_the_session(store):
    store.redis.delete(store.keys.session("s"))


def lose_the_list(store):
    store.redis.delete(store.keys.session_waiting("s"))


def lose_both(store):
    lose_the_session(store)
    lose_the_list(store)


LOSSES = [vanish, leave_the_queue, lose_the_session, lose_the_list, lose_both]


@pytest.mark.parametrize("lose", LOSSES, ids=lambda lose: lose.__name__)
@pytest.mark.parametrize("runs", [False, True], ids=["waits", "runs"])
def test_nothing_waits_for_a_holder_that_is_gone(store, lose, runs):
    routed(store, "r1", "r2", "r3")
    if runs:
        claim(store)
    lose(store)
    store.reconcile(force=True)
    assert ran_to_their_ends(store) == {"r2", "r3"} | ({"r1"} - vanished(store))


def vanished(store):
    return set() if store.job("r1") else {"r1"}


def ran_to_their_ends(store):
    """Works as pools do until nothing is left; gives what was run, one of a session at a time."""
    done = set()
    for _ in range(40):
        store.recover("cpu", "w-cpu")
        store.reconcile(force=True)
        for item in claim(store):
            assert finish(store, item)
            done.add(item.job_id)
        if not store.redis.zcard(store.keys.active):
            break
    return done


def of_another_type(store, key):
    store.redis.delete(key)
    store.redis.set(key, "garbage")


@pytest.mark.parametrize("which", ["session", "session_waiting", "waiting"])
def test_a_key_of_another_type_is_put_right_and_all_run_in_order(store, which):
    routed(store, "r1", "r2", "r3")
    key = store.keys.waiting if which == "waiting" else getattr(store.keys, which)("s")
    of_another_type(store, key)
    assert store.session("s").get("holder") == (None if which == "session" else "r1")
    store.reconcile(force=True)
    route(store, "r4")
    ran = []
    while items := claim(store):
        assert len(items) == 1, "two of one session at once"
        ran += [item.job_id for item in items]
        assert finish(store, items[0])
        store.reconcile(force=True)
    assert sorted(ran) == ["r1", "r2", "r3", "r4"]
    assert ran == ["r1", "r2", "r3", "r4"] or which == "session"


def test_a_session_key_of_another_type_fails_no_claim(store):
    routed(store, "r1")
    of_another_type(store, store.keys.session("s"))
    [item] = claim(store)
    assert (item.job_id, item.attempts) == ("r1", 1)
    of_another_type(store, store.keys.session("s"))
    store.session_note("s", writing="w")
    assert store.session("s")["writing"] == "w"
    of_another_type(store, store.keys.session("s"))
    store.session_forget("s")
    assert finish(store, item)
    assert store.job("r1")["status"] == "finished"


def test_a_fence_beyond_all_counting_begins_anew(store):
    routed(store, "r1")
    store.redis.hset(store.keys.session("s"), mapping={"fence": "9" * 25})
    [item] = claim(store)
    assert (item.job_id, item.fence) == ("r1", 1)


def test_a_list_that_was_lost_is_made_again_in_its_order(store):
    routed(store, "r1", "r2", "r3", "r4")
    lose_the_list(store)
    store.reconcile(force=True)
    assert waiting(store) == ["r2", "r3", "r4"]
    lose_both(store)
    finish(store, claim(store)[0])
    store.reconcile(force=True)
    assert (queue(store), waiting(store)) == (["r2"], ["r3", "r4"])


def test_a_routed_request_waits_behind_those_that_wait_for_a_holder_that_vanished(store):
    routed(store, "r1", "r2")
    vanish(store)
    assert route(store, "r3") == "waits"
    assert (queue(store), waiting(store)) == (["r1", "r2"], ["r3"])
    assert [item.job_id for item in claim(store)] == ["r2"]


def test_reconcile_leaves_a_session_in_order_alone(store):
    routed(store, "r1", "r2", "r3")
    assert store.reconcile(force=True) == []
    assert (queue(store), waiting(store)) == (["r1"], ["r2", "r3"])
    assert store.redis.zcard(store.keys.waiting) == 2


def test_a_request_that_is_queued_beside_the_holder_waits_again(store):
    routed(store, "r1", "r2")
    claim(store)
    store.redis.rpush(store.keys.queue("cpu"), "r2")
    assert claim(store) == []
    assert waiting(store)[0] == "r2"


def test_reconcile_counts_those_that_wait_as_looked_after(store):
    """Otherwise each round would look at every request."""
    routed(store, "r1", "r2", "r3")
    active, seen = store.redis.zcard(store.keys.active), store.redis.zcard(store.keys.waiting)
    assert active == seen + len(queue(store))


def test_numbers_that_are_none_are_left_out_and_a_fence_begins_anew(store):
    routed(store, "r1")
    store.redis.hset(store.keys.session("s"), mapping={"fence": "abc", "generation": "x"})
    assert set(store.session("s")) & {"fence", "generation"} == set()
    [item] = claim(store)
    assert (item.job_id, item.fence) == ("r1", 1)
