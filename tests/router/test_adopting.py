"""What waits in the queues of a node that is gone, or had no name, goes on in a node that lives."""

import pytest

from router import adopting
from router.adopting import Adopter
from router.membership import Membership
from router.sight import Sight
from tests.ingest.named_nodes import NamedNode
from tests.workers.queue.conftest import Node
from workers.fleet.presence import forget
from workers.sla import SlaTable
from workers.store import PASSED_MS
from workers.wire import PoolLoad


@pytest.fixture
def adopter(redis_url):
    """Of node a, which has a pool with room."""
    node = NamedNode(redis_url, "a")
    node.report(free_blocks=64)
    membership = Membership(node.say())
    return Adopter(node.store, Sight(node.store, "tiny"), SlaTable(), membership)


def test_what_a_node_left_that_had_no_name_is_taken_over(redis_url, adopter):
    """It was restarted with one, when a second node came."""
    before = Node(redis_url)
    before.route("r1", model="tiny")
    adopter.look()
    assert before.queue() == [] and before.queue("cpu@a") == ["r1"]
    job = before.store.job("r1")
    assert job["reason"] == "cpu@a: taken over, a node without a name is gone"


def test_a_node_without_a_name_that_lives_keeps_what_it_has(redis_url, adopter):
    before = Node(redis_url)
    before.store.report(PoolLoad(pool="cpu", worker="old-cpu-0", state="ready"))
    before.route("r1", model="tiny")
    adopter.look()
    assert before.queue() == ["r1"]


def test_a_node_that_takes_no_part_takes_nothing_over(redis_url, adopter):
    adopter.fleet.refused = "its clock is wrong"
    before = Node(redis_url)
    before.route("r1", model="tiny")
    adopter.look()
    assert before.queue() == ["r1"]


def test_what_one_node_cannot_hold_another_one_may_take_at_once(redis_url, adopter):
    before = Node(redis_url)
    before.route("r1", model="tiny", max_tokens=65 * 256)
    adopter.look()
    assert before.queue() == ["r1"]
    larger = NamedNode(redis_url, "b")
    larger.report(total_blocks=128, free_blocks=128)
    other = Adopter(larger.store, Sight(larger.store, "tiny"), SlaTable(), Membership(larger.say()))
    assert before.redis.pttl(other.store.keys.turn("adopt:")) <= PASSED_MS
    before.redis.delete(other.store.keys.turn("adopt:"))
    other.look()
    assert before.queue("cpu@b") == ["r1"]


def test_what_is_let_in_for_a_node_that_was_forgotten_goes_on_here(redis_url, adopter):
    """It waited for its session while that node was taken off the list."""
    before = Node(redis_url)
    gone = NamedNode(redis_url, "z")
    gone.say()
    before.route("r1", model="tiny", session_id="s", pool="cpu@a")
    before.route("r2", model="tiny", session_id="s", pool="cpu@z")
    forget(gone.store, "z")
    before.store.cancel("r1")
    assert before.queue("cpu@z") == ["r2"]
    adopter.look()
    assert before.queue("cpu@a") == ["r2"]


def test_a_node_that_has_no_name_any_more_finds_what_it_had(redis_url):
    named = NamedNode(redis_url, "a")
    named.say()
    node = Node(redis_url)
    node.route("r1", model="tiny", pool="cpu@a")
    node.store.report(PoolLoad(pool="cpu", worker="w", state="ready", model="tiny", capacity=4))
    adopter = Adopter(node.store, Sight(node.store, "tiny"), SlaTable(), Membership(None))
    adopter.look()
    assert node.queue("cpu@a") == ["r1"], "that node was heard just now"
    named.fall_silent(60)
    adopter._looked_at = adopter._searched_at = float("-inf")
    adopter.look()
    assert (node.queue("cpu@a"), node.queue()) == ([], ["r1"])


def test_what_another_node_took_over_first_stays_there(redis_url, adopter):
    """Also of a node that had no name."""
    before = Node(redis_url)
    before.route("r1", model="tiny")
    NamedNode(redis_url, "b").say()
    assert adopter.store.move("r1", "cpu@b", of_node="") == "moved"
    assert adopter.store.move("r1", "cpu@a", of_node="") == "moved"
    assert (before.queue("cpu@b"), before.queue("cpu@a")) == (["r1"], [])


def test_nothing_is_moved_to_a_node_that_nobody_has_heard(redis_url, adopter):
    before = Node(redis_url)
    before.route("r1", model="tiny")
    with pytest.raises(ValueError, match="there is no node 'nobody'"):
        before.store.move("r1", "cpu@nobody")


def test_what_no_node_that_lives_could_hold_ends_late(redis_url, adopter, monkeypatch):
    before = Node(redis_url)
    before.route("r1", model="tiny", max_tokens=65 * 256)
    adopter.look()
    assert before.status("r1") == "queued"
    monkeypatch.setattr(adopting, "PATIENCE_S", 0.0)
    adopter._looked_at = float("-inf")
    before.redis.delete(adopter.store.keys.turn("adopt:"))
    adopter.look()
    job = before.store.job("r1")
    assert (job["status"], job["code"]) == ("failed", "no_pool")
    assert "a node without a name is gone, and the others hold" in job["error"]


def test_a_session_that_is_too_long_for_this_node_is_left_to_a_larger_one(redis_url, adopter):
    before = Node(redis_url)
    before.redis.hset(before.keys.session("s"), "tokens", 65 * 256)
    said = ({"role": "user", "content": "Hello"},)
    before.route("r1", model="tiny", token_ids=(), messages=said, session_id="s")
    NamedNode(redis_url, "b").say()
    before.redis.zadd(adopter.store.keys.longest, {"b": 128 * 256})
    adopter.look()
    assert before.queue() == ["r1"]
    before.redis.zrem(adopter.store.keys.longest, "b")  # then it is told here that it is too long
    adopter._looked_at = float("-inf")
    before.redis.delete(adopter.store.keys.turn("adopt:"))
    adopter.look()
    assert before.queue("cpu@a") == ["r1"]
