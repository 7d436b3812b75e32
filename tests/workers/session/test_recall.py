"""Whose files hold the last turn: by fences, not by what files say of themselves."""

import pytest

from tests.workers.session.fakes import FakeBacking, FakeStore, manifest_of
from workers.session.recall import Recall, chosen, is_current, is_void
from workers.session.token_log import packed

NOTED = {"committed": 6, "generation": 4, "fence": 7}


def at(fence, generation=4, token_ids=(1, 2, 3), **more):
    manifest = manifest_of(generation=generation, token_ids=token_ids, **more)
    object.__setattr__(manifest, "fence", fence)
    return manifest


@pytest.mark.parametrize(
    "head, noted, answer",
    [
        (None, {}, True),
        (at(1), {}, True),
        (at(6), NOTED, True),
        (at(7), NOTED, True),  # committed by who died before it could say so
        (at(5, generation=9), NOTED, False),  # of a node whose writer had more to commit
        (None, NOTED, False),
        (at(1, generation=4), {"generation": 4}, True),
        (at(9, generation=3), {"generation": 4}, False),
        (None, {"generation": 1}, False),
    ],
)
def test_files_are_current_or_stale(head, noted, answer):
    assert is_current(head, noted) is answer


def test_what_was_there_at_a_deletion_is_void():
    assert is_void(at(5), {"dropped": 5}) and not is_void(at(6), {"dropped": 5})
    assert not is_void(at(1), {})


@pytest.mark.parametrize(
    "stored, logged, found",
    [
        (at(6), None, "stored"),
        (at(6), at(6), "stored"),
        (at(5), at(6), "logged"),
        (None, at(6), "logged"),
        (at(5), at(5), None),
        (None, None, None),
    ],
)
def test_the_object_store_comes_first_if_it_is_as_new(stored, logged, found):
    answer = chosen(None, stored, logged, NOTED)
    assert answer == {"stored": stored, "logged": logged, None: None}[found]


def test_what_follows_can_be_committed_over_old_files_with_more_generations():
    assert chosen(at(5, generation=30), at(6), None, NOTED).generation == 30


def test_a_log_has_the_kv_that_the_store_or_our_files_have_of_its_beginning():
    log = tuple(range(700))
    stored = at(5, token_ids=log[:600], num_kv=512, blocks=(b"1" * 32, b"2" * 32))
    own = at(4, token_ids=log[:300], num_kv=256, blocks=(b"1" * 32,))
    found = chosen(own, stored, at(6, token_ids=log), NOTED)
    assert (found.num_kv, found.token_ids) == (512, log)
    assert chosen(own, None, at(6, token_ids=log), NOTED).num_kv == 256
    other = at(5, token_ids=(9, *log[1:600]), num_kv=512, blocks=(b"1" * 32, b"2" * 32))
    assert chosen(None, other, at(6, token_ids=log), NOTED).num_kv == 0


class Redis(dict):
    """Only get."""


@pytest.fixture
def recall():
    store = FakeStore()
    store.redis = Redis()
    return Recall(store, FakeBacking())


def test_the_token_log_is_taken_and_counted(recall):
    recall.store.redis["lockstep:session:s:log"] = packed(at(6))
    found = recall.recall("default", "s", None, NOTED)
    assert (found.manifest.fence, found.trouble) == (6, "")
    assert recall.stats()["recalled_log"] == 1


def test_a_log_that_is_damaged_or_old_is_none(recall):
    for data in (packed(at(6))[:-10], packed(at(5)), b"?"):
        recall.store.redis["lockstep:session:s:log"] = data
        assert recall.recall("default", "s", None, NOTED).manifest is None
    assert recall.stats()["recall_failed"] == 3


def test_a_store_that_fails_says_why_and_the_log_is_taken(recall):
    recall.backing.ask_store = lambda call, seconds: (None, "it is away")
    assert recall.recall("default", "s", None, NOTED).trouble == "it is away"
    recall.store.redis["lockstep:session:s:log"] = packed(at(6))
    assert recall.recall("default", "s", None, NOTED).manifest is not None


def test_a_stored_one_that_was_deleted_since_is_none(recall):
    recall.backing.ask_store = lambda call, seconds: (at(6), "")
    assert recall.recall("default", "s", None, NOTED).manifest.fence == 6
    assert recall.recall("default", "s", None, NOTED | {"dropped": 6}).manifest is None
