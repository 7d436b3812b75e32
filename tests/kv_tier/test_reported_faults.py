"""Faults that users of other systems reported of KV on disks, one test each; names say what is so.

Others stand with what they are about: test_fetch (llama.cpp#26676, sglang#39147, sglang#26305),
test_budget (sglang#31485), test_isolation (LMCache#4385, llama.cpp#27148).
"""

import os
import threading
from contextlib import closing, suppress
from dataclasses import replace

import pytest

from kv_tier.budget import OverBudget, TierLimits
from kv_tier.chain import fingerprint_of
from kv_tier.files import DiskError, OsFiles
from tests.kv_tier.talker import BLOCK_FILE, HYBRID, LLAMA, Talker, tokens_of

TOKENS = tokens_of(1, 700)


class BadDisk(OsFiles):
    """Nothing can be read any more, once it is bad."""

    is_bad = False

    def populate(self, path, address, num_bytes):
        if self.is_bad:
            raise DiskError(path, OSError(5, "Input/output error"))
        super().populate(path, address, num_bytes)


def test_a_load_that_failed_is_not_counted_as_a_hit(tmp_path):
    """dynamo#15079: a failed disk load counted as complete, and other KV was served with 200."""
    files = BadDisk()
    with closing(Talker(tmp_path, files=files)) as talker:
        talker.say("anna", "s1", TOKENS)
        files.is_bad = True
        assert talker.hit("anna", TOKENS) == 0
        stats = talker.tier.stats()
        assert stats["hits"] == 0
        assert stats["misses"] == 1


def test_what_was_damaged_is_whole_again_after_the_next_write(tmp_path):
    """llama.cpp#27068: a damaged snapshot was rejected, but stayed and poisoned later requests."""
    with closing(Talker(tmp_path)) as talker:
        talker.say("anna", "s1", TOKENS)
        for kind, key, _, _ in list(talker.tier.objects.walk()):
            path = talker.tier.objects.path(kind, key)
            path.write_bytes(path.read_bytes()[:-7] + b"garbage")
        assert talker.hit("anna", TOKENS) == 0
        talker.say("anna", "s1", TOKENS)
        assert talker.hit("anna", TOKENS) == 699


@pytest.mark.parametrize("num_bytes", [0, 1, 63, 64, 4095, 4096, 4097, 8191])
def test_a_block_that_was_cut_anywhere_is_a_shorter_hit(tmp_path, num_bytes):
    """LMCache#3022: an unread buffer was returned as data."""
    with closing(Talker(tmp_path)) as talker:
        manifest = talker.say("anna", "s1", TOKENS)
        path = talker.tier.objects.path("block", manifest.blocks[1])
        path.write_bytes(path.read_bytes()[:num_bytes])
        assert talker.hit("anna", TOKENS) == 256


def test_a_file_that_was_deleted_by_hand_is_a_shorter_hit(tmp_path):
    """LMCache#2420: a missing file killed the engine."""
    with closing(Talker(tmp_path)) as talker:
        manifest = talker.say("anna", "s1", TOKENS)
        talker.tier.objects.path("tail", manifest.tail).unlink()
        assert talker.hit("anna", TOKENS) == 512


def test_one_bad_file_is_not_tried_for_ever(tmp_path):
    """vllm#49176: the request retried the load for ever."""
    tried: list[str] = []

    class Counting(BadDisk):
        def populate(self, path, address, num_bytes):
            tried.append(path.suffix)
            super().populate(path, address, num_bytes)

    files = Counting()
    with closing(Talker(tmp_path, files=files)) as talker:
        talker.say("anna", "s1", TOKENS)
        files.is_bad = True
        for _ in range(3):
            assert talker.hit("anna", TOKENS) == 0
        assert sorted(tried) == [".block", ".block", ".tail"]


def test_after_a_restart_nothing_is_forgotten_and_the_budget_still_counts(tmp_path):
    """LMCache#4564, #2840, #562: the index died with the process, and the quota was blind."""
    limits = TierLimits(quota_bytes=3 * BLOCK_FILE + 8192)
    with closing(Talker(tmp_path, limits)) as talker:
        talker.say("anna", "s1", TOKENS)
    with closing(Talker(tmp_path, limits)) as talker:
        assert talker.hit("anna", TOKENS) == 699
        with pytest.raises(OverBudget):
            talker.tier.put("bert", talker.sources("bert", TOKENS[:256]))


def test_a_disk_that_only_grows_is_bounded(tmp_path):
    """Mooncake#2475, sglang#26670: nothing was ever evicted, until the disk was full."""
    quota = 10 * BLOCK_FILE + 60 * 8192
    with closing(Talker(tmp_path, TierLimits(quota_bytes=quota))) as talker:
        for number in range(30):
            talker.clock.ms += 1
            talker.say("anna", f"s{number}", tokens_of(number, 600))
            assert talker.tier.ledger.totals().num_bytes <= quota
        assert talker.hit("anna", tokens_of(29, 600)) == 599


def test_a_beginning_that_is_seen_first_is_kept(tmp_path):
    """sglang#39444: write-through lost first-seen prefixes."""
    with closing(Talker(tmp_path)) as talker:
        talker.tier.put("anna", talker.sources("anna", TOKENS[:512]))
        assert talker.hit("anna", TOKENS) == 512


def test_room_is_made_at_once_when_nearly_all_may_go(tmp_path):
    """sglang#26357: hung with 93 % evictable. Several writers at once, all of them get on."""
    limits = TierLimits(quota_bytes=15 * BLOCK_FILE + 40 * 8192)
    with closing(Talker(tmp_path, limits)) as talker:
        for number in range(7):
            talker.say("anna", f"s{number}", tokens_of(number, 513))
        talker.tier.pin("anna", "s0", True)
        done: list[int] = []

        def write(number: int) -> None:
            with suppress(OverBudget):
                talker.say("anna", f"w{number}", tokens_of(100 + number, 513))
            done.append(talker.hit("anna", tokens_of(100 + number, 513)))

        threads = [threading.Thread(target=write, args=(n,), daemon=True) for n in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert done == [512, 512, 512]
        assert talker.hit("anna", tokens_of(0, 513)) == 512


def test_other_weights_of_the_same_name_get_nothing(tmp_path):
    """antirez/ds4#805, sglang#24758: KV was keyed by the model's name."""
    requantised = replace(LLAMA, fingerprint=fingerprint_of("llama again", 1, (2, 2)))
    with closing(Talker(tmp_path)) as one, closing(Talker(tmp_path, sizes=requantised)) as other:
        assert one.say("anna", "s1", TOKENS).model == other.manifest("anna", "s2", [1]).model
        assert other.hit("anna", TOKENS) == 0
        assert one.hit("anna", TOKENS) == 699


def test_a_file_of_other_weights_under_the_right_name_is_refused(tmp_path):
    """vllm#55904: a layout that is not in the name must at least be in the file."""
    with closing(Talker(tmp_path)) as talker:
        talker.say("anna", "s1", TOKENS)
        (block, *_) = talker.sources("anna", TOKENS[:256])
        talker.tier.objects.drop("block", block.key)
        talker.tier.objects.write(replace(block, fingerprint=HYBRID.fingerprint))
        assert talker.hit("anna", TOKENS) == 0
        assert not talker.tier.objects.has("block", block.key)


def test_a_file_of_another_size_under_the_right_name_is_refused(tmp_path):
    """llama.cpp#14434: an empty slot was restored."""
    with closing(Talker(tmp_path)) as talker:
        talker.say("anna", "s1", TOKENS)
        (block, *_) = talker.sources("anna", TOKENS[:256])
        talker.tier.objects.drop("block", block.key)
        talker.tier.objects.write(replace(block, parts=(b"x",)))
        assert talker.hit("anna", TOKENS) == 0


def test_a_session_longer_than_the_descriptors_of_a_process_is_a_shorter_hit(tmp_path):
    """No file is dropped for a shortage of ours."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    tokens = tokens_of(1, 256 * 40 + 1)
    with closing(Talker(tmp_path)) as talker:
        talker.say("anna", "s1", tokens)
        assert talker.hit("anna", tokens_of(2, 600)) == 0, "threads and connections are there"
        taken = len(os.listdir("/proc/self/fd"))
        resource.setrlimit(resource.RLIMIT_NOFILE, (taken + 20, hard))
        try:
            short = talker.hit("anna", tokens)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert 0 <= short < 256 * 40
        assert talker.hit("anna", tokens) == 256 * 40
