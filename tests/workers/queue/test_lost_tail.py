"""The store lost the end of its log while a pool lived on: what the pool knows is said again.

Found by tests/chaos (the fault cut_log): the journal had a hole, and the request ended with it.
"""

import msgspec
import pytest

from tests.workers.queue.test_lease import DONE, claim, tokens
from workers.queue.emitter import Emitter, Told
from workers.queue.pulse import Pulse
from workers.worker_store import Said


@pytest.fixture
def running(node):
    """One request with two tokens in its journal, and the item of whoever runs it."""
    node.route("r1")
    [item] = claim(node)
    tell(node, Said(item, tokens(0, 2)))
    return node, item


def tell(node, said):
    return node.store.tell("cpu", "w1", [said])


def lose(node, *entries):
    node.redis.xdel(node.keys.tokens("r1"), *entries)


def test_a_token_that_would_leave_a_hole_is_not_written(running):
    node, item = running
    lose(node, "0-2")
    assert tell(node, Said(item, tokens(2, 4))) == [False]
    assert [event.index for _, event in node.store.tokens("r1")] == [0]
    assert (node.status("r1"), node.queue(), node.leases()) == ("queued", ["r1"], [])
    assert node.store.job("r1")["attempts"] == 0


def test_who_claims_it_again_reads_the_journal_and_fills_it(running):
    node, item = running
    lose(node, "0-2")
    tell(node, Said(item, tokens(2, 4)))
    [again] = claim(node)
    # Redis keeps the last id of a stream that lost entries by XDEL; one that was cut is shorter
    entries = node.redis.xrange(node.keys.tokens("r1"))
    node.redis.delete(node.keys.tokens("r1"))
    for entry_id, fields in entries:
        node.redis.xadd(node.keys.tokens("r1"), fields, id=entry_id)
    assert tell(node, Said(again, tokens(1, 4))) == [True]
    assert tell(node, Said(again, (), DONE, " 0 1 2 3!", after=4)) == [True]
    node.check_ended("r1")


def test_an_answer_whose_journal_lacks_tokens_does_not_end(running):
    node, item = running
    lose(node, "0-2")
    lost = []
    emitter = Emitter(node.store, "cpu", "w1", Pulse(), on_lost=lost.append, on_end=lost.append)
    emitter.write([Told(item, DONE, " 0 1!")])
    assert lost == [item] and node.status("r1") == "queued"


def test_an_answer_that_is_whole_ends(running):
    node, item = running
    ended = []
    emitter = Emitter(node.store, "cpu", "w1", Pulse(), on_lost=print, on_end=ended.append)
    emitter.write([Told(item, DONE, " 0 1!")])
    assert ended == [item]
    node.check_ended("r1")


def test_an_answer_to_a_prompt_that_the_store_has_lost_is_not_written(node):
    """Its prompt was composed of its session, and nobody could say of what it is the answer."""
    node.route("r1", token_ids=(), session_id="s", messages=({"role": "user", "content": "Hi"},))
    [item] = claim(node)
    assert tell(node, Said(item, tokens(0, 1))) == [False]
    assert (node.status("r1"), node.queue()) == ("queued", ["r1"])
    [again] = claim(node)
    composed = msgspec.structs.replace(again.request, token_ids=(1, 2), composed=True)
    assert node.store.compose(again, composed)
    assert tell(node, Said(again, tokens(0, 1))) == [True]


def test_a_repeat_leaves_no_hole(running):
    node, item = running
    assert tell(node, Said(item, tokens(0, 2))) == [True]
    assert tell(node, Said(item, tokens(1, 3))) == [True]
    assert [event.index for _, event in node.store.tokens("r1")] == [0, 1, 2]
