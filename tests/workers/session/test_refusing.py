"""A turn whose session lost something is refused, unless the client sends all of it."""

from types import SimpleNamespace

import pytest

from kv_tier.manifest import Message
from tests.workers.session.fakes import manifest_of
from tests.workers.session.restorer_desk import answered, new
from workers.session.compose import Turn


def test_a_session_of_other_weights_is_refused(desk):
    desk.sessions.now = manifest_of(generation=3)
    object.__setattr__(desk.sessions.now, "weights_digest", "cd" * 16)
    desk.run(new())
    end = desk.ended["r1"]
    assert end.code == "session_mismatch" and "cdcdcdcdcdcd" in end.error


def test_after_a_turn_that_was_not_saved_only_the_whole_history_goes_on(desk):
    desk.store.hash["unsaved"] = "disk full"
    desk.turn = Turn([1, 2], (SimpleNamespace(role="user"),), 0, None)
    desk.run(new("r1"))
    assert desk.ended["r1"].code == "session_not_saved"
    roles = ("user", "assistant", "user")
    desk.turn = Turn([1, 2], tuple(SimpleNamespace(role=role) for role in roles), 0, None)
    desk.run(new("r2"))
    assert "r2" in desk.done


def test_a_turn_that_was_not_saved_can_be_asked_again(desk):
    """Told that it was not saved, a client sends the same once more: nothing would be missing."""
    desk.store.hash["unsaved"] = "disk full"
    desk.turn = Turn([1, 2], (SimpleNamespace(role="user"),), 0, None)
    desk.run(new("r1", session_mode="history"))
    assert "r1" in desk.done


def test_a_turn_lost_with_a_damaged_log_is_not_passed_over_in_silence(desk):
    desk.turn = answered([Message("user", "go on")])
    desk.sessions.generation_damaged = 4
    desk.run(new("r1"))
    assert desk.ended["r1"].code == "session_unreadable"
    assert "generation 4 of its log is damaged" in desk.ended["r1"].error
    desk.sessions.now = manifest_of(generation=2)
    desk.store.hash["generation"] = 4
    desk.run(new("r2"))
    assert desk.ended["r2"].code == "session_unreadable"


def test_a_damaged_log_that_said_no_more_is_passed_over(desk):
    desk.turn = answered([Message("user", "go on")])
    desk.sessions.now = manifest_of(generation=3)
    desk.sessions.generation_damaged = 4
    desk.store.hash["generation"] = 3
    desk.run(new("r1"))
    assert "r1" in desk.done


@pytest.mark.parametrize("left", [None, 2])
def test_files_that_were_deleted_by_hand_begin_no_new_conversation_in_silence(desk, left):
    desk.turn = answered([Message("user", "go on")])
    desk.sessions.now = left and manifest_of(generation=left)
    desk.store.hash["generation"] = 4
    desk.run(new("r1"))
    end = desk.ended["r1"]
    assert (end.status, end.code) == ("failed", "session_gone")
    assert end.error.startswith("session_id: the files of 's' are gone (generation 4 was committed")
    assert "start another session, delete this one" in end.error
    del desk.store.hash["generation"]
    desk.run(new("r2"))
    assert "r2" in desk.done


def test_who_sends_the_whole_history_needs_no_files(desk):
    desk.store.hash["generation"] = 4
    desk.turn = answered([Message("user", "a"), Message("assistant", "b"), Message("user", "c")])
    desk.run(new("r1"))
    desk.turn = answered([Message("user", "a")])
    desk.run(new("r2", session_mode="history"))
    assert set(desk.done) == {"r1", "r2"}


def test_who_sends_the_whole_history_goes_on_without_the_log(desk):
    desk.turn = answered([Message("user", "a"), Message("assistant", "b"), Message("user", "c")])
    desk.sessions.generation_damaged = 4
    desk.run(new("r1"))
    desk.turn = answered([Message("user", "a")])
    desk.run(new("r2", session_mode="history"))
    assert set(desk.done) == {"r1", "r2"}
