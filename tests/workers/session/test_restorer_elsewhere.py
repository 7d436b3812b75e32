"""Between claim and engine, of a session that other nodes have gone on with, or deleted."""

from kv_tier.manifest import Message
from tests.workers.session.fakes import item_of, manifest_of
from tests.workers.session.restorer_desk import answered
from workers.session.recall import Recalled


class Elsewhere:
    """A recall that has what it is told."""

    def __init__(self, manifest=None, trouble=""):
        self.found, self.asked = Recalled(manifest, trouble), []

    def recall(self, tenant, session_id, head, noted):
        self.asked.append((tenant, session_id, head and head.generation, noted.get("committed")))
        return self.found


def committed(fence, generation=4, **more):
    manifest = manifest_of(generation=generation, **more)
    object.__setattr__(manifest, "fence", fence)
    return manifest


def test_files_of_an_earlier_owner_are_not_answered_from(desk):
    """It came back with more generations than were ever noted: its writer had more to commit."""
    desk.turn = answered([Message("user", "go on")])
    desk.sessions.now = committed(2, generation=9, last_request="r1")
    desk.store.hash |= {"committed": 4, "generation": 5}
    desk.run(item_of("r1"))
    assert desk.ended["r1"].code == "session_gone" and not desk.done


def test_what_our_files_lack_is_brought_from_elsewhere(desk):
    desk.sessions.now = committed(2, generation=9)
    desk.store.hash |= {"committed": 4, "generation": 5}
    desk.restorer.recall = Elsewhere(committed(4, generation=9, token_ids=(1, 2, 9)))
    desk.run(item_of("r1", token_ids=(1, 2, 5)))
    turn = desk.done["r1"].turn
    assert (turn.head.fence, turn.own_generation) == (4, 9)
    assert desk.restorer.recall.asked == [("default", "s", 9, 4)]
    assert desk.backing.brought == [(9, 2)]  # as far as the prompt is the log


def test_files_that_are_current_ask_nobody(desk):
    desk.sessions.now = committed(4)
    desk.store.hash |= {"committed": 4, "generation": 4}
    desk.restorer.recall = Elsewhere()
    desk.run(item_of("r1"))
    assert desk.done["r1"].turn.head.fence == 4 and not desk.restorer.recall.asked


def test_a_store_that_gives_no_answer_is_named_when_nobody_else_has_the_session(desk):
    desk.turn = answered([Message("user", "go on")])
    desk.store.hash |= {"committed": 4, "generation": 4}
    desk.restorer.recall = Elsewhere(trouble="the object store gave no answer")
    desk.run(item_of("r1"))
    assert desk.ended["r1"].code == "session_gone"
    assert desk.ended["r1"].error.endswith("; the object store gave no answer")


def test_files_of_a_session_that_another_node_deleted_go(desk):
    desk.sessions.now = committed(3, last_request="r1")
    desk.store.hash |= {"dropped": 4, "fence": 5}
    desk.run(item_of("r1"))
    turn = desk.done["r1"].turn
    assert desk.backing.tier.dropped == ["s"] and turn.head is None and turn.turn is not None
    assert turn.fence == desk.sessions.fence


def test_claims_to_come_are_above_a_fence_that_only_our_files_know(desk):
    desk.sessions.fence = 40
    desk.run(item_of("r1"))
    assert desk.done["r1"].turn.fence == desk.store.hash["fence"] == 41
