"""What nobody needs goes; what somebody may need stays; the books agree with the disk again."""

import os
import time

import pytest

from kv_tier.budget import TierLimits
from kv_tier.collect import Collected
from kv_tier.ledger_rows import Mark, Room
from tests.kv_tier.talker import BLOCK_FILE, Talker, tokens_of

DAY_MS = 86_400_000
TTL_MS = 30 * DAY_MS
TOKENS = tokens_of(1, 513)


@pytest.fixture
def talker(tmp_path):
    talker = Talker(tmp_path / "kv", TierLimits(ttl_ms=TTL_MS))
    talker.clock.ms = time.time_ns() // 10**6  # as the files have it
    yield talker
    talker.close()


def test_there_is_nothing_to_collect(talker):
    assert talker.tier.collect() == Collected()
    talker.say("anna", "s1", TOKENS)
    assert talker.tier.collect() == Collected()
    assert talker.hit("anna", TOKENS) == 512


def test_blocks_of_a_turn_that_goes_on_are_no_orphans(talker):
    sources = talker.sources("anna", TOKENS[:-1])
    talker.tier.put("anna", sources)
    keys = [source.key for source in sources if source.kind == "block"]
    for _ in range(3):
        talker.clock.ms += 6 * 60_000
        talker.tier.renew(keys)
        assert talker.tier.collect() == Collected()
    talker.clock.ms += 11 * 60_000
    assert talker.tier.collect().objects == len(keys)


def test_who_must_know_hears_of_an_old_session_before_it_goes(talker):
    talker.say("anna", "s1", TOKENS)
    talker.clock.ms += TTL_MS + 1
    told = []

    def forget(*session):
        told.append((session, talker.tier.sessions.head(*session) is not None))

    assert talker.tier.collect(forget).sessions == 1
    assert told == [(("anna", "s1"), True)]


def test_an_old_session_stays_while_nobody_can_be_told(talker):
    talker.say("anna", "s1", TOKENS)
    talker.clock.ms += TTL_MS + 1

    def forget(*session):
        raise ConnectionError

    with pytest.raises(ConnectionError):
        talker.tier.collect(forget)
    assert talker.tier.sessions.head("anna", "s1") is not None


def test_an_orphan_goes_after_a_while(talker):
    talker.tier.put("anna", talker.sources("anna", TOKENS[:-1]))
    assert talker.tier.collect() == Collected()
    talker.clock.ms += 11 * 60_000
    assert talker.tier.collect() == Collected(objects=2, bytes=2 * BLOCK_FILE)
    assert talker.size() == talker.tier.ledger.totals().num_bytes == 0


def test_an_orphan_that_was_just_fetched_stays(talker):
    talker.tier.put("anna", talker.sources("anna", TOKENS[:-1]))
    talker.clock.ms += 11 * 60_000
    assert talker.hit("anna", TOKENS) == 512
    assert talker.tier.collect() == Collected()


def test_a_session_that_nobody_used_goes_with_its_log(talker):
    talker.say("anna", "s1", TOKENS)
    talker.say("anna", "s2", tokens_of(2, 10))
    talker.tier.pin("anna", "s2", True)
    talker.clock.ms += TTL_MS // 2
    talker.say("anna", "s3", tokens_of(3, 10))
    talker.clock.ms += TTL_MS // 2 + 1
    assert talker.tier.collect().sessions == 1
    assert sorted(talker.tier.sessions.ids()) == [("anna", "s2"), ("anna", "s3")]
    assert not any(talker.hit("anna", tokens) for tokens in (TOKENS, tokens_of(1, 300)))


def test_temporary_files_go_when_they_are_old(talker):
    talker.say("anna", "s1", TOKENS)
    folder = next((talker.tier.root / "objects").iterdir())
    old, new = folder / ".tmp-0123", folder / ".tmp-4567"
    for path in (old, new):
        path.write_bytes(b"half a block")
    os.utime(old, (time.time() - 3600, time.time() - 3600))
    assert talker.tier.collect().temporary == 1
    assert (old.exists(), new.exists()) == (False, True)


def test_reservations_of_the_dead_go(talker):
    talker.tier.ledger.reserve("anna", 1000, Room(0, 0, 1 << 40, 0))
    talker.clock.ms += 3_600_001
    assert talker.tier.collect().reservations == 1
    assert talker.tier.ledger.reserved_bytes() == 0


def test_who_commits_while_a_collector_looks_knows_better(talker):
    old = talker.say("anna", "s1", TOKENS)
    talker.clock.ms += 1
    new = talker.say("anna", "s1", tokens_of(1, 769))
    ledger = talker.tier.ledger
    before, now = Mark(old.generation, old.used_ms), Mark(new.generation, new.used_ms)
    for mark, head in ((before, old), (before, None), (None, old)):
        ledger.mend(("anna", "s1"), mark, head)
    assert ledger.session("anna", "s1").num_tokens == 769
    assert ledger.orphans() == []
    ledger.mend(("anna", "s1"), now, old)
    assert ledger.session("anna", "s1").num_tokens == 513
    ledger.mend(("anna", "s1"), before, None)
    assert ledger.session("anna", "s1") is None


def test_a_commit_that_was_not_booked_is_found_by_its_generation(talker):
    """The log of a turn, and the manifest that names its KV, have the same time."""
    talker.say("anna", "s1", TOKENS)
    talker.tier.put("anna", talker.sources("anna", tokens_of(1, 768)))
    talker.tier.sessions.commit(talker.manifest("anna", "s1", tokens_of(1, 769)))
    talker.clock.ms += 11 * 60_000
    assert talker.tier.collect() == Collected()
    assert talker.hit("anna", tokens_of(1, 769)) == 768


def test_what_a_killed_process_did_not_tell_is_found(talker, tmp_path):
    """It wrote, committed and deleted, and died each time before it could tell the ledger."""
    talker.say("anna", "s1", TOKENS)
    talker.say("anna", "s2", tokens_of(2, 513))
    talker.say("anna", "s3", tokens_of(3, 513))
    told = talker.tier.ledger.totals()
    dead = Talker(tmp_path / "kv")
    dead.clock.ms = talker.clock.ms
    for source in dead.sources("anna", tokens_of(4, 512)):
        dead.tier.objects.write(source)
    dead.clock.ms += 1
    dead.tier.sessions.commit(dead.manifest("anna", "s4", tokens_of(4, 513)))
    dead.tier.sessions.commit(dead.manifest("anna", "s1", TOKENS[:257]))
    dead.tier.sessions.drop("anna", "s2")
    key = dead.chain("anna").key_at(tokens_of(3, 513), 512)
    dead.tier.objects.drop("block", key)
    dead.close()
    assert talker.tier.ledger.totals() == told, "it cannot know"
    assert talker.tier.collect().objects == 3, "one block of s1, two of s2"
    ledger = talker.tier.ledger
    ids = [(row.session_id, row.num_tokens) for row in ledger.list_sessions()]
    assert ids == [("s1", 257), ("s3", 513), ("s4", 513)]
    manifests = sum(ledger.manifests_bytes("anna", session_id) for session_id, _ in ids)
    assert ledger.totals().num_bytes == talker.size() + manifests
    talker.clock.ms += 11 * 60_000
    assert talker.tier.collect().objects == 0
    assert talker.hit("anna", tokens_of(4, 513)) == 512
