"""What nodes say of a session: only its last owner's commit counts, and a deletion voids the rest.

Scripts on a real store, as the pools of two nodes call them.
"""

import pytest

from workers.wire import Keys
from workers.worker_store import WorkerStore


@pytest.fixture
def store(redis_url):
    return WorkerStore(redis_url, Keys("lockstep"))


def commit(store, fence, log=b"what was said"):
    return store.session_note("s", fence=fence, log=log, committed=fence, generation=fence)


def log_of(store):
    return store.redis.get(store.keys.session_log("s"))


def test_a_commit_and_its_log_are_said_in_one_step(store):
    assert commit(store, 3)
    known = store.session("s")
    assert (known["committed"], known["generation"], known["fence"]) == (3, 3, 3)
    assert log_of(store) == b"what was said"
    assert 0 < store.redis.ttl(store.keys.session_log("s")) <= store.result_ttl_s


def test_a_node_that_comes_late_with_a_commit_changes_nothing(store):
    assert commit(store, 5, b"new")
    assert not commit(store, 4, b"old")
    assert (store.session("s")["committed"], log_of(store)) == (5, b"new")


def test_claims_to_come_are_above_every_fence_that_was_said(store):
    store.session_note("s", fence=40)
    assert store.session("s")["fence"] == 40 and "committed" not in store.session("s")


def test_what_runs_while_a_session_is_deleted_commits_no_more(store):
    commit(store, 3)
    assert store.session_forget("s")
    assert not commit(store, 3)
    known = store.session("s")
    assert known["dropped"] == 4 and "committed" not in known and log_of(store) is None
    assert commit(store, 5)


def test_old_files_that_go_by_their_age_take_no_newer_commit_along(store):
    commit(store, 7)
    assert not store.session_forget("s", fence=6)
    assert store.session("s")["committed"] == 7 and log_of(store)
    assert store.session_forget("s", fence=7)
    assert "committed" not in store.session("s")


def test_a_log_that_is_too_large_takes_the_one_before_away(store):
    commit(store, 3)
    commit(store, 4, b"")
    assert log_of(store) is None
    store.session_note("s", writing="w")
    assert store.session("s")["committed"] == 4


def test_a_fence_that_is_no_number_disturbs_nothing(store):
    store.redis.hset(store.keys.session("s"), mapping={"fence": "x" * 40, "committed": "y"})
    assert commit(store, 2)
    store.redis.hset(store.keys.session("s"), "fence", "9" * 30)
    assert store.session_forget("s", fence=2)


def test_a_sessions_log_lies_beside_its_hash():
    assert Keys("{a}").session_log("acme--s") == "{a}:session:acme--s:log"
