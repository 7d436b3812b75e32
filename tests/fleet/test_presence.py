"""What a node says to its fleet, and what it hears: its name, what is common, who is gone."""

import time

import msgspec
import pytest

from tests.node.running_node import wait_for
from workers.fleet.presence import NodeReport, Presence, difference, forget, nodes
from workers.store import Store
from workers.wire import Keys

LEASE_S = 0.3
SAME = "tiny:0123:45:2-67"


@pytest.fixture
def node(redis_url):
    """node("a"): its presence; nothing has been said yet."""

    def make(name, instance=None, identity=SAME, **options):
        store = Store(redis_url, Keys("f", node=name), lease_s=LEASE_S)
        told = NodeReport(node=name, instance=instance or name, host=f"host-{name}")
        return Presence(store, identity, told, **options)

    return make


def silent(presence):
    """Its name, once the others have to look after it."""
    return lambda: presence.say(1.0) or presence.gone


def test_each_has_its_share_of_all_speeds(node):
    a, b = node("a"), node("b")
    a.say(3.0)
    b.say(1.0)
    a.say(3.0)
    assert (a.share, b.share) == (0.75, 0.25)
    assert (a.refused, b.refused, a.gone) == ("", "", ())


def test_a_silent_node_is_gone_and_its_share_is_the_others(node):
    a, b = node("a"), node("b")
    b.say(1.0)
    assert wait_for(silent(a), "b is gone", 10) == ("b",)
    assert a.share == 1.0
    b.say(1.0)
    a.say(1.0)
    assert (a.gone, a.share) == ((), 0.5)


def test_a_node_that_leaves_is_gone_at_once(node):
    a, b = node("a"), node("b")
    b.say(1.0)
    b.leave()
    a.say(1.0)
    assert a.gone == ("b",)


def test_a_name_is_one_homes_as_long_as_that_lives(node):
    first, second = node("a", "home-1"), node("a", "home-2")
    first.say(1.0)
    second.say(1.0)
    assert "another node, on host-a, is called 'a', too" in second.refused and not first.refused
    second.leave()  # says nothing in the other's name
    assert not node_called("a", first).report.refused
    wait_for(lambda: second.say(1.0) or not second.refused, "the first one's lease", 10)
    first.say(1.0)
    assert "is called 'a', too" in first.refused


def test_what_differs_is_named_and_takes_no_part(node):
    a, b = node("a"), node("b", identity="tiny:9999:45:2-67")
    a.say(1.0)
    b.say(1.0)
    assert b.refused.startswith("its digest of weights is 9999, the fleet's is 0123: all nodes")
    b.say(1.0)
    a.say(1.0)
    assert a.share == 1.0, "it is not counted"
    assert "weights" in node_called("b", a).report.refused
    time.sleep(1.2 * LEASE_S)  # nobody of the first kind lives: the second is what is common now
    b.say(1.0)
    assert not b.refused
    a.say(1.0)
    assert "weights" in a.refused


@pytest.mark.parametrize("ahead_s", [-70, 70])
def test_a_wrong_clock_is_named_and_takes_no_part(node, ahead_s):
    a = node("a", clock=lambda: time.time() + ahead_s)
    a.say(1.0)
    side = "ahead of" if ahead_s > 0 else "behind"
    assert a.refused == f"its clock is 70 s {side} the store's; set it by NTP"
    a.say(1.0)
    report = node_called("a", a).report
    assert report.refused == a.refused and abs(report.clock_ms - 1000 * ahead_s) < 1000
    b = node("b", identity="another:one:is:free")  # what the first one is binds nobody
    b.say(1.0)
    assert not b.refused


def test_what_a_later_version_says_is_read_as_far_as_it_is_known(node):
    a = node("a")
    a.say(1.0)
    key = a.store.keys.node_report("a")
    said = msgspec.json.decode(a.store.redis.hget(key, "said"))
    a.store.redis.hset(key, "said", msgspec.json.encode(said | {"from_the_future": [1]}))
    assert node_called("a", a).report.host == "host-a"
    a.store.redis.hset(key, "said", b"\xff not json")
    assert "cannot read" in node_called("a", a).report.refused


def test_a_node_can_be_forgotten(node):
    a = node("a")
    a.say(1.0)
    forget(a.store, "a")
    assert nodes(a.store) == []
    assert a.store.redis.zcard(a.store.keys.speeds) == 0


@pytest.mark.parametrize(
    "theirs, what",
    [
        ("big:0123:45:2-67", "its model is tiny, the fleet's is big"),
        ("tiny:9:45:2-67", "its digest of weights is 0123, the fleet's is 9"),
        ("tiny:0123:9:2-67", "its tokenizer or template is 45, the fleet's is 9"),
        ("tiny:0123:45:3-1", "its arithmetic version is 2-67, the fleet's is 3-1"),
    ],
)
def test_the_first_difference_is_told(theirs, what):
    assert difference(SAME, theirs) == what


def node_called(name, presence):
    return next(one for one in nodes(presence.store) if one.report.node == name)
