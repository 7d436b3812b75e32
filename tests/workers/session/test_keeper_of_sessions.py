"""A turn is durable before it is said to be finished; who is not the owner says nothing."""

import errno
from dataclasses import replace
from pathlib import Path

import pytest

from kv_tier.files import DiskError, DiskFull
from tests.workers.session.fakes import (
    FakeBacking,
    FakeStore,
    item_of,
    kept_of,
    manifest_of,
    turn_of,
)
from workers.session import keeper_of_sessions as keeper_module
from workers.session import turn as turn_module
from workers.session.keeper_of_sessions import Ended, KeeperOfSessions
from workers.wire import EndEvent, Keys

FULL = DiskFull(Path("/home/kv/sessions"), OSError(errno.ENOSPC, "No space left on device"))
DONE = EndEvent(status="finished", finish_reason="stop", digest="ab")


class Desk:
    """A keeper, and in which order it did what."""

    def __init__(self):
        self.backing, self.store = FakeBacking(), FakeStore()
        self.tier, self.did = self.backing.tier, []
        self.keeper = KeeperOfSessions(
            self.store,
            "cpu",
            "w",
            self.backing,
            self,
            tell=lambda told: self.did.append(("told", told.event, len(self.tier.committed))),
            lost=lambda item: self.did.append(("lost", item.job_id)),
            release=lambda kept: self.did.append(("released", kept.num_kv)),
        )

    def put(self, entry):
        """As the writer."""
        self.did.append(("written behind", entry.manifest.generation))

    def end(self, turn=None):
        ended = Ended(item_of(), DONE, "Hello", kept_of(), turn or turn_of())
        self.keeper.put(ended)
        self.keeper.put(None)
        self.keeper.serve()


@pytest.fixture
def desk(monkeypatch):
    monkeypatch.setattr(turn_module, "turn_after", lambda turn, ids, text: (len(ids), text))
    return Desk()


def test_the_log_is_durable_before_the_end_is_told(desk):
    desk.end()
    assert desk.did == [("written behind", 1), ("told", DONE, 1)]
    [log] = desk.tier.committed
    assert (log.token_ids, log.last_request, log.digest) == (tuple(range(601)), "r1", "ab")
    assert log.messages == (598, "Hello")
    assert desk.store.hash["writing"] == "w" and desk.store.hash["tokens"] == 601


def test_a_session_goes_on_from_its_head(desk):
    head = manifest_of(generation=7, forked_from="t")
    desk.tier.sessions.now = head
    desk.end(turn_of(head))
    [log] = desk.tier.committed
    assert (log.generation, log.created_ms, log.forked_from) == (8, 1, "t")


def test_who_lost_the_lease_says_and_keeps_nothing(desk):
    desk.tier.sessions.fence, desk.store.has_lease = 6, False
    desk.end()
    assert desk.did == [("lost", "r1"), ("released", 600)]
    assert desk.tier.committed == []


def test_a_late_worker_that_took_the_fence_does_not_end_its_owner(desk):
    desk.tier.sessions.fence = 6
    desk.end()
    [log] = desk.tier.committed
    assert log.fence == 7
    assert desk.did[-1] == ("told", DONE, 1)


def test_a_session_that_was_deleted_meanwhile_stays_deleted(desk):
    desk.tier.sessions.fence = 6
    desk.end(turn_of(manifest_of(generation=3)))
    assert desk.tier.committed == []
    [(_, end, _), released] = desk.did
    assert (end.status, end.code) == ("finished", "session_not_saved")
    assert "deleted" in end.error and released == ("released", 600)
    assert desk.store.hash["unsaved"] == ""  # whoever goes on misses nothing


def test_a_full_disk_loses_no_answer_and_is_said(desk):
    desk.tier.commit_fails = FULL
    desk.end()
    [(_, end, _), released] = desk.did
    assert (end.status, end.finish_reason, end.code) == ("finished", "stop", "session_not_saved")
    assert "No space left" in end.error and released == ("released", 600)
    assert str(FULL.path) not in end.error, "where files lie is nobody else's business"
    assert "No space left" in desk.store.hash["unsaved"]


def test_a_shortage_of_descriptors_that_passes_is_waited_for(desk, monkeypatch):
    """Found by tests/chaos: the turn was not saved, and the session refused the next one."""
    moves = desk.backing.moves

    def pass_by():
        desk.tier.commit_fails = None
        moves()

    monkeypatch.setattr(desk.backing, "moves", pass_by)
    commit = desk.keeper.commit
    monkeypatch.setattr(desk.keeper, "commit", lambda ended: again_short(desk) or commit(ended))
    desk.end()
    assert desk.did == [("written behind", 1), ("told", DONE, 1)]


def again_short(desk):
    """The keeper has just said that it moves."""
    desk.tier.commit_fails = DiskError(Path("x"), OSError(errno.EMFILE, "Too many open files"))


def test_what_an_earlier_owner_committed_is_not_committed_again(desk):
    head = manifest_of(generation=4, last_request="r1")
    desk.tier.sessions.now = head
    turn = turn_of(head)
    desk.end(type(turn)("default", "s", "s", 5, head, None))
    assert desk.tier.committed == []
    assert desk.did == [("written behind", 4), ("told", DONE, 0)]


def test_a_full_store_later_clears_the_mark(desk):
    desk.store.hash["unsaved"] = "disk full"
    desk.end()
    assert desk.store.hash["unsaved"] == ""


def test_a_commit_that_a_later_owner_overtook_is_not_told(desk):
    """It has the session on another node, whose files know nothing of our fence."""
    desk.store.hash |= {"fence": 6, "committed": 6}
    desk.end()
    [told, released] = desk.did
    assert told[1].code == "session_not_saved" and "changed or deleted" in told[1].error
    assert released[0] == "released" and desk.store.hash["committed"] == 6


def test_the_fence_of_a_commit_is_noted(desk):
    desk.end()
    assert (desk.store.hash["committed"], desk.store.hash["fence"]) == (5, 5)
    assert desk.store.logs == []  # alone on its Redis


def test_what_an_earlier_owner_committed_keeps_its_fence(desk):
    """Our files have no newer one until the writer comes to it."""
    head = manifest_of(generation=7)
    desk.tier.sessions.now = head
    desk.end(replace(turn_of(head), turn=None))
    assert (desk.store.hash["committed"], desk.store.hash["fence"]) == (1, 5)


def test_a_node_of_a_fleet_gives_the_log_with_the_commit(desk, monkeypatch):
    monkeypatch.setattr(keeper_module, "packed", lambda manifest: b"%d" % manifest.generation)
    desk.store.keys = Keys("lockstep", node="a")
    desk.end()
    assert desk.store.logs == [b"1"]


def test_files_that_lack_what_was_brought_from_elsewhere_are_ours_all_the_same(desk):
    """A late worker took the fence: the head is compared with our files, not with what was read."""
    head = manifest_of(generation=7)
    desk.tier.sessions.now = manifest_of(generation=3)
    desk.tier.sessions.fence = 8
    desk.end(replace(turn_of(head), on_disk=3))
    assert [log.generation for log in desk.tier.committed] == [8]
