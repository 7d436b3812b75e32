"""What the tier promises as a whole: put, commit, drop, pin, and what it says of itself."""

from pathlib import Path

import pytest

from kv_tier.files import DiskError, DiskFull
from kv_tier.fork import NoSession
from kv_tier.sessions import BadName, StaleFence
from tests.kv_tier.talker import BLOCK_FILE, HYBRID, LLAMA, STATE_FILE, Talker, tokens_of

TOKENS = tokens_of(1, 700)


@pytest.fixture
def talker(tmp_path):
    talker = Talker(tmp_path / "kv", sizes=HYBRID)
    yield talker
    talker.close()


def test_what_is_there_is_not_written_again(talker):
    sources = talker.sources("anna", TOKENS)
    assert talker.tier.put("anna", sources) == talker.size() == 3 * BLOCK_FILE + STATE_FILE
    assert talker.tier.put("anna", sources) == 0
    assert talker.tier.put("anna", talker.sources("anna", TOKENS[:512])) == STATE_FILE


def test_what_computing_took_is_shared_out_by_tokens(talker):
    talker.tier.put("anna", talker.sources("anna", TOKENS[:512], state=False), seconds=8.0)
    query = "SELECT seconds FROM objects"
    seconds = talker.tier.ledger._file.read(lambda db: db.execute(query).fetchall())
    assert seconds == [(4.0,), (4.0,)]
    talker.tier.put("anna", talker.sources("anna", TOKENS[:768], state=False), seconds=6.0)
    seconds = talker.tier.ledger._file.read(lambda db: db.execute(query).fetchall())
    assert sorted(seconds) == [(pytest.approx(6.0 * 188 / 700),), (4.0,), (4.0,)]


def test_sources_may_be_made_one_by_one(talker):
    """A pool stages them through a small ring."""
    sources = talker.sources("anna", TOKENS)
    seen: list[int] = []

    def staged():
        for source in sources:
            seen.append(talker.tier.ledger.totals().num_objects)
            yield source

    talker.tier.put("anna", staged())
    assert seen == [0, 1, 2, 3]


def test_a_late_writer_cannot_commit(talker):
    late = talker.manifest("anna", "s1", TOKENS)
    talker.say("anna", "s1", TOKENS[:300])
    before = talker.tier.ledger.session("anna", "s1")
    with pytest.raises(StaleFence):
        talker.tier.commit(late)
    assert talker.tier.ledger.session("anna", "s1") == before
    assert talker.tier.ledger.reserved_bytes() == 0


def out_of_order(*_args):
    raise DiskError(Path("ledger.sqlite"), OSError(5, "Input/output error"))


@pytest.mark.parametrize("method", ["reserve", "manifests_bytes", "commit"])
def test_a_log_is_kept_when_the_ledger_is_out_of_order(talker, method):
    really = getattr(talker.tier.ledger, method)
    setattr(talker.tier.ledger, method, out_of_order)
    manifest = talker.manifest("anna", "s1", TOKENS, kv=False)
    talker.tier.commit(manifest)
    setattr(talker.tier.ledger, method, really)
    assert talker.tier.sessions.head("anna", "s1") == manifest
    talker.tier.collect()
    assert talker.tier.ledger.session("anna", "s1").num_tokens == 700
    assert talker.tier.ledger.reserved_bytes() == 0


def test_a_ledger_without_room_is_a_full_disk(talker):
    """SQLite's own word for it; what is there is still found."""
    talker.say("anna", "s1", TOKENS)
    talker.tier.ledger._file.read(lambda db: db.execute("PRAGMA max_page_count = 1").fetchall())
    with pytest.raises(DiskFull):
        for turn in range(2, 200):
            talker.tier.put("anna", talker.sources("anna", tokens_of(turn, 600)))
    assert talker.hit("anna", TOKENS) == 699


def test_dropping_a_session_takes_its_own_objects(talker):
    talker.say("anna", "s1", TOKENS)
    talker.say("anna", "s2", TOKENS[:512] + tokens_of(2, 100))
    freed = talker.tier.drop("anna", "s1")
    assert freed > BLOCK_FILE + STATE_FILE
    assert talker.tier.sessions.head("anna", "s1") is None
    assert talker.hit("anna", TOKENS) == 0, "no state but the other session's"
    assert talker.hit("anna", [*TOKENS[:512], *tokens_of(2, 100)]) == 611
    talker.tier.drop("anna", "s2")
    assert talker.size() == talker.tier.ledger.totals().num_bytes == 0


def test_dropping_leaves_what_waits_for_another_manifest(talker):
    talker.say("anna", "s1", TOKENS)
    talker.tier.put("anna", talker.sources("anna", TOKENS[:512], state=False))
    talker.tier.drop("anna", "s1")
    assert talker.size() == 2 * BLOCK_FILE


def test_dropping_takes_what_was_just_fetched_too(talker):
    talker.say("anna", "s1", TOKENS)
    assert talker.hit("anna", TOKENS) == 699
    talker.tier.drop("anna", "s1")
    assert talker.size() == 0


def test_dropping_what_is_not_there(talker):
    assert talker.tier.drop("anna", "s1") == 0
    with pytest.raises(BadName):
        talker.tier.drop("anna", "../s1")


def test_a_dropped_session_can_begin_again(talker):
    talker.say("anna", "s1", TOKENS)
    talker.tier.drop("anna", "s1")
    assert talker.say("anna", "s1", [1, 2, 3]).generation == 1
    assert talker.tier.ledger.session("anna", "s1").num_tokens == 3


def test_a_pin_outlives_the_tier_and_goes_with_the_session(talker, tmp_path):
    talker.say("anna", "s1", TOKENS)
    talker.tier.pin("anna", "s1", True)
    talker.tier.pin("anna", "s1", True)
    again = Talker(tmp_path / "kv")
    assert again.tier.ledger.session("anna", "s1").pinned
    again.say("anna", "s1", [*TOKENS, 1])
    assert again.tier.ledger.session("anna", "s1").pinned, "a turn does not take it away"
    again.tier.drop("anna", "s1")
    again.say("anna", "s1", TOKENS)
    again.tier.collect()
    assert not again.tier.ledger.session("anna", "s1").pinned
    again.close()


def test_pinning_needs_a_session(talker):
    with pytest.raises(NoSession):
        talker.tier.pin("anna", "s1", True)
    with pytest.raises(BadName):
        talker.tier.pin("anna/..", "s1", True)


def test_an_old_state_is_nobodys_once_the_session_goes_on(talker):
    talker.say("anna", "s1", TOKENS)
    talker.say("anna", "s1", TOKENS + tokens_of(2, 10))
    talker.clock.ms += 3_600_000
    assert talker.tier.collect().objects == 2, "the tail and the state of the turn before"
    assert talker.hit("anna", TOKENS + tokens_of(2, 11)) == 709


def test_what_the_tier_says_of_itself(talker):
    talker.say("anna", "s1", TOKENS)
    stats = talker.tier.stats()
    assert (stats["objects"], stats["sessions"]) == (4, 1)
    assert stats["bytes"] == talker.size() + 8192
    assert stats["written_bytes"] == talker.size()
    assert all(isinstance(value, float | int) for value in stats.values())


def test_two_models_share_a_folder(talker, tmp_path):
    other = Talker(tmp_path / "kv", sizes=LLAMA)
    talker.say("anna", "s1", TOKENS)
    other.say("anna", "s1", TOKENS)
    assert talker.hit("anna", [*TOKENS, 1]) == other.hit("anna", [*TOKENS, 1]) == 699
    other.close()


def test_what_is_not_to_be_trusted_goes_whoever_names_it(talker):
    sources = talker.sources("anna", TOKENS, state=False)
    talker.tier.put("anna", sources)
    last = [("block", source.key) for source in sources if source.kind == "block"][-1:]
    assert talker.tier.discard(last) == BLOCK_FILE
    assert not talker.tier.objects.has(*last[0])
    assert talker.tier.discard(last) == 0
    assert talker.tier.stats()["objects"] == len(sources) - 1
