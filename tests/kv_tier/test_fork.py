"""A fork begins as another session did, and copies no KV."""

from dataclasses import replace

import pytest

from kv_tier.fork import NoSession, SessionExists, forked
from kv_tier.manifest import Checkpoint, Manifest, Message
from kv_tier.sessions import BadName
from tests.kv_tier.talker import HYBRID, Talker, tokens_of

KEYS = [bytes((n,)) * 32 for n in range(1, 9)]
WHOLE = Manifest(
    tenant="anna",
    session_id="old",
    generation=7,
    fence=9,
    fingerprint=bytes(32),
    model="m",
    weights_digest="w",
    arithmetic_version="1",
    created_ms=1,
    used_ms=2,
    token_ids=tuple(range(801)),
    messages=(
        Message("user", "a"),
        Message("assistant", "b", 100, 300),
        Message("user", "c"),
        Message("assistant", "d", 500, 800),
    ),
    num_kv=800,
    blocks=(KEYS[0], KEYS[1], KEYS[2]),
    tail=KEYS[3],
    checkpoints=(Checkpoint(300, KEYS[4]), Checkpoint(512, KEYS[1]), Checkpoint(800, KEYS[3])),
    last_request="r7",
    digest="0123456789abcdef",
)


def fork(position: int | None) -> Manifest:
    return forked(WHOLE, "new", position, fence=3, now_ms=50)


def test_a_whole_fork_names_all_that_the_session_named():
    new = fork(None)
    assert (new.session_id, new.forked_from, new.generation, new.fence) == ("new", "old", 1, 3)
    assert (new.created_ms, new.used_ms, new.last_request) == (50, 50, "")
    same = ("token_ids", "messages", "num_kv", "blocks", "tail", "checkpoints", "digest")
    assert all(getattr(new, name) == getattr(WHOLE, name) for name in same)
    assert fork(801) == new


@pytest.mark.parametrize(
    ("position", "num_kv", "num_blocks", "has_tail", "checkpoints", "num_messages"),
    [
        (800, 800, 3, True, 3, 4),
        (799, 768, 3, False, 2, 2),
        (768, 768, 3, False, 2, 2),
        (767, 512, 2, False, 2, 2),
        (512, 512, 2, False, 2, 2),
        (300, 256, 1, False, 1, 2),
        (299, 256, 1, False, 0, 0),
        (0, 0, 0, False, 0, 0),
    ],
)
def test_a_fork_at_a_position_keeps_whole_blocks(
    position, num_kv, num_blocks, has_tail, checkpoints, num_messages
):
    new = fork(position)
    assert new.token_ids == WHOLE.token_ids[:position]
    assert (new.num_kv, len(new.blocks), new.tail is not None) == (num_kv, num_blocks, has_tail)
    assert len(new.checkpoints) == checkpoints
    assert new.messages == WHOLE.messages[:num_messages]
    assert new.digest == ""


def test_a_fork_behind_all_kv_keeps_all_of_it():
    """A log may be longer than its KV: when a turn could not be written."""
    longer = replace(WHOLE, token_ids=tuple(range(1000)))
    new = forked(longer, "new", 900, fence=3, now_ms=50)
    assert (new.num_kv, new.blocks, new.tail) == (WHOLE.num_kv, WHOLE.blocks, WHOLE.tail)
    assert new.checkpoints == WHOLE.checkpoints


@pytest.fixture
def talker(tmp_path):
    talker = Talker(tmp_path / "kv", sizes=HYBRID)
    yield talker
    talker.close()


def test_a_fork_writes_no_object(talker):
    talker.say("anna", "old", tokens_of(1, 700))
    before = talker.size()
    new = talker.tier.fork("anna", "old", "new")
    assert talker.size() == before
    assert talker.tier.sessions.head("anna", "new") == new
    assert talker.hit("anna", [*new.token_ids, 5]) == 699


def test_both_go_on_from_a_fork(talker):
    talker.say("anna", "old", tokens_of(1, 700))
    talker.tier.fork("anna", "old", "new")
    one, other = tokens_of(1, 700) + [1] * 300, tokens_of(1, 700) + [2] * 300
    talker.say("anna", "old", one)
    talker.say("anna", "new", other)
    assert talker.hit("anna", [*one, 1]) == talker.hit("anna", [*other, 2]) == 999


def test_the_fork_lives_on_when_the_session_is_dropped(talker):
    talker.say("anna", "old", tokens_of(1, 700))
    talker.tier.fork("anna", "old", "new")
    talker.tier.drop("anna", "old")
    assert talker.hit("anna", tokens_of(1, 701)) == 699
    talker.tier.drop("anna", "new")
    assert talker.size() == 0


def test_a_fork_needs_a_session_and_a_free_name(talker):
    with pytest.raises(NoSession, match="'old' of 'anna'"):
        talker.tier.fork("anna", "old", "new")
    talker.say("anna", "old", [1, 2])
    talker.say("anna", "new", [1, 2])
    with pytest.raises(SessionExists, match="'new' of 'anna'"):
        talker.tier.fork("anna", "old", "new")
    with pytest.raises(NoSession):
        talker.tier.fork("bert", "old", "other")
    with pytest.raises(BadName):
        talker.tier.fork("anna", "old", "../new")
