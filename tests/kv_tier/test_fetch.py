"""A prompt's beginning comes back from files: the longest that is whole, never a wrong one."""

import os
import threading
import time
from contextlib import closing

import pytest

from kv_tier.files import DiskError, OsFiles
from kv_tier.loader import FIRST_GUESS, Speeds
from kv_tier.prefix import state_name
from tests.kv_tier.talker import HYBRID, LLAMA, Talker, tokens_of

TOKENS = tokens_of(1, 700)


@pytest.fixture
def talker(tmp_path):
    talker = Talker(tmp_path / "kv")
    yield talker
    talker.close()


@pytest.fixture
def hybrid(tmp_path):
    talker = Talker(tmp_path / "kv", sizes=HYBRID)
    yield talker
    talker.close()


def path_of(talker: Talker, kind: str, end: int):
    key = talker.chain("anna").key_at(TOKENS, end)
    return talker.tier.objects.path(kind, key)


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def flip_a_byte(path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def test_a_session_is_read_back(talker):
    talker.say("anna", "s1", TOKENS)
    with closing(talker.fetch("anna", [*TOKENS, 7, 8])) as prefix:
        assert (prefix.end, len(prefix.blocks), prefix.tail_end) == (699, 2, 699)
        assert prefix.state is None
        talker.check("anna", [*TOKENS, 7, 8], prefix)


def test_a_prefix_names_all_full_blocks_and_the_ends_that_were_asked_for(talker):
    with closing(talker.fetch("anna", TOKENS, ends=[699, 5, 700, 0, 9000, 5])) as prefix:
        assert len(prefix.keys) == 2
        assert prefix.ends == (5, 699)


def test_another_session_finds_the_common_beginning(talker):
    talker.say("anna", "s1", TOKENS)
    assert talker.hit("anna", TOKENS[:520] + tokens_of(2, 100)) == 512


def test_another_tenant_finds_nothing(talker):
    talker.say("anna", "s1", TOKENS)
    assert talker.hit("bert", TOKENS) == 0


def test_other_weights_find_nothing(talker, tmp_path):
    talker.say("anna", "s1", TOKENS)
    with closing(Talker(tmp_path / "kv", sizes=HYBRID)) as other:
        assert other.hit("anna", TOKENS) == 0


def test_what_is_in_ram_is_not_opened(talker):
    talker.say("anna", "s1", TOKENS)
    keys = talker.chain("anna").block_keys(TOKENS)
    with closing(talker.fetch("anna", TOKENS, resident=keys[:1].__contains__)) as prefix:
        assert (prefix.end, list(prefix.blocks)) == (699, keys[1:])


def test_what_is_in_ram_joins_files_to_a_beginning(talker):
    talker.say("anna", "s1", TOKENS)
    path_of(talker, "block", 256).unlink()
    assert talker.hit("anna", TOKENS) == 0
    keys = talker.chain("anna").block_keys(TOKENS)
    assert talker.hit("anna", TOKENS, resident=keys[:1].__contains__) == 699


DAMAGE = {
    "block 256": 0,
    "block 512": 256,
    "tail 699": 512,
}


@pytest.mark.parametrize("which", DAMAGE)
def test_a_bad_file_makes_the_hit_shorter_and_is_dropped(talker, which):
    talker.say("anna", "s1", TOKENS)
    kind, end = which.split()
    path = path_of(talker, kind, int(end))
    flip_a_byte(path)
    before = open_files()
    assert talker.hit("anna", TOKENS) == DAMAGE[which]
    assert not path.exists()
    assert talker.tier.stats()["bad_files"] == 1
    assert talker.hit("anna", TOKENS) == DAMAGE[which]
    assert talker.tier.stats()["bad_files"] == 1, "nobody meets it twice"
    assert open_files() == before
    talker.say("anna", "s1", [*TOKENS, 1])
    assert talker.hit("anna", TOKENS[:699]) >= DAMAGE[which], "it was written again"


def test_several_bad_files_are_all_found(talker):
    talker.say("anna", "s1", TOKENS)
    for kind, end in (("block", 512), ("tail", 699), ("block", 256)):
        flip_a_byte(path_of(talker, kind, end))
    assert talker.hit("anna", TOKENS) == 0
    assert talker.tier.objects.has("block", talker.chain("anna").key_at(TOKENS, 256)) is False


def test_a_file_that_is_cut_short_is_dropped(talker):
    talker.say("anna", "s1", TOKENS)
    path = path_of(talker, "block", 512)
    path.write_bytes(path.read_bytes()[:5000])
    assert talker.hit("anna", TOKENS) == 256
    assert not path.exists()


def test_a_bad_file_leaves_the_sums_right(talker):
    talker.say("anna", "s1", TOKENS)
    flip_a_byte(path_of(talker, "block", 512))
    before = talker.tier.ledger.totals().num_objects
    assert talker.hit("anna", TOKENS) == 256
    assert talker.tier.ledger.totals().num_objects == before - 1


class BadSector(OsFiles):
    """Pages of files of one kind cannot be brought in."""

    kind = ".nothing"
    number = 5

    def populate(self, path, address, num_bytes):
        if path.name.endswith(self.kind):
            raise DiskError(path, OSError(self.number, os.strerror(self.number)))
        super().populate(path, address, num_bytes)


def test_a_bad_sector_is_a_shorter_hit(tmp_path):
    files = BadSector()
    with closing(Talker(tmp_path / "kv", files=files)) as talker:
        talker.say("anna", "s1", TOKENS)
        files.kind = ".tail"
        assert talker.hit("anna", TOKENS) == 512
        assert not path_of(talker, "tail", 699).exists()


def test_a_shortage_of_ours_costs_no_file(tmp_path):
    """Out of descriptors, or of memory: nothing is wrong with the file."""
    files = BadSector()
    files.number = 24
    with closing(Talker(tmp_path / "kv", files=files)) as talker:
        talker.say("anna", "s1", TOKENS)
        files.kind = ".tail"
        assert talker.hit("anna", TOKENS) == 512
        files.kind = ".nothing"
        assert talker.hit("anna", TOKENS) == 699
        assert talker.tier.stats()["bad_files"] == 0


def test_a_file_that_goes_while_it_is_looked_up_is_a_shorter_hit(talker):
    talker.say("anna", "s1", TOKENS)
    path = path_of(talker, "block", 512)
    really_open = talker.tier.objects.open

    def gone(kind, key, *rest):
        path.unlink(missing_ok=True)
        return really_open(kind, key, *rest)

    talker.tier.objects.open = gone
    assert talker.hit("anna", TOKENS) == 256


def test_a_hybrid_begins_where_a_state_is(hybrid):
    hybrid.say("anna", "s1", TOKENS)
    with closing(hybrid.fetch("anna", [*TOKENS, 7])) as prefix:
        assert (prefix.end, prefix.state_end, prefix.tail_end) == (699, 699, 699)
        hybrid.check("anna", [*TOKENS, 7], prefix)


def test_a_hybrid_without_a_state_begins_at_the_start(hybrid):
    """llama.cpp#26676: KV without the state is worth nothing."""
    hybrid.tier.put("anna", hybrid.sources("anna", TOKENS[:-1], state=False))
    before = open_files()
    assert hybrid.hit("anna", TOKENS) == 0
    assert open_files() == before


def test_a_hybrid_shares_a_beginning_up_to_a_state_at_a_blocks_end(hybrid):
    hybrid.tier.put("anna", hybrid.sources("anna", TOKENS[:256]))
    hybrid.tier.put("anna", hybrid.sources("anna", TOKENS[:-1], state=False))
    assert hybrid.hit("anna", TOKENS[:600] + tokens_of(2, 9)) == 256


def test_a_bad_state_is_an_earlier_beginning(hybrid):
    """sglang#39147: a side file that is missing must not be promised."""
    hybrid.say("anna", "s1", TOKENS[:513])
    hybrid.say("anna", "s1", TOKENS)
    flip_a_byte(path_of(hybrid, "state", 699))
    assert hybrid.hit("anna", TOKENS) == 512
    assert not path_of(hybrid, "state", 699).exists()


def test_a_state_in_ram_is_not_read(hybrid):
    hybrid.say("anna", "s1", TOKENS)
    name = state_name(hybrid.chain("anna").key_at(TOKENS, 699))
    with closing(hybrid.fetch("anna", TOKENS, resident={name}.__contains__)) as prefix:
        assert (prefix.end, prefix.state) == (699, None)


def test_a_block_in_ram_is_no_state_in_ram(hybrid):
    """Both have the same key where a block ends."""
    hybrid.tier.put("anna", hybrid.sources("anna", TOKENS[:256]))
    keys = hybrid.chain("anna").block_keys(TOKENS)
    with closing(hybrid.fetch("anna", TOKENS, resident=keys.__contains__)) as prefix:
        assert (prefix.end, prefix.state_end) == (256, 256)
        assert prefix.state is not None


def test_a_restore_that_is_slower_than_computing_is_skipped(talker):
    """sglang#26305: the hit from the disk was slower than no hit."""
    talker.say("anna", "s1", TOKENS)
    before = open_files()
    assert talker.hit("anna", TOKENS, prefill_tokens_per_s=1e9) == 0
    assert talker.tier.stats()["skipped"] == 1
    assert open_files() == before
    assert talker.hit("anna", TOKENS, prefill_tokens_per_s=100.0) == 699


def test_a_skipped_restore_leaves_what_is_in_ram(talker):
    talker.say("anna", "s1", TOKENS)
    keys = talker.chain("anna").block_keys(TOKENS)[:1]
    hit = talker.hit("anna", TOKENS, resident=keys.__contains__, prefill_tokens_per_s=1e9)
    assert hit == 256


def test_a_slow_disk_is_believed_until_it_was_skipped_often():
    speeds = Speeds()
    for _ in range(30):
        speeds.measured("disk", 1 << 30, 100.0)
    slow = speeds.seconds({"disk": 1 << 30})
    assert slow > 50
    for _ in range(100):
        speeds.skipped()
    assert speeds.seconds({"disk": 1 << 30}) == pytest.approx((1 << 30) / FIRST_GUESS["disk"], 0.01)
    speeds.measured("disk", 1000, 100.0)
    assert speeds.read()["disk"] == pytest.approx(FIRST_GUESS["disk"]), "too small to say anything"


def test_a_fast_disk_stays_fast_when_a_restore_is_skipped():
    speeds = Speeds()
    speeds.measured("disk", 1 << 30, 0.01)
    fast = speeds.read()["disk"]
    speeds.skipped()
    assert speeds.read()["disk"] == fast > FIRST_GUESS["disk"]


def test_what_was_fetched_is_counted(talker):
    talker.say("anna", "s1", TOKENS)
    keys = talker.chain("anna").block_keys(TOKENS)[:1]
    talker.hit("anna", TOKENS, resident=keys.__contains__, prefill_tokens_per_s=100.0)
    talker.hit("bert", TOKENS)
    stats = talker.tier.stats()
    assert (stats["hits"], stats["misses"]) == (1, 1)
    assert stats["tokens_ram"] == 256
    assert stats["tokens_cache"] + stats["tokens_disk"] == 443
    assert stats["bytes_cache"] + stats["bytes_disk"] == LLAMA.block_bytes + 187 * 16
    assert 6.5 < stats["seconds_saved"] <= 6.99


def test_a_failing_ledger_costs_no_hit(talker):
    talker.say("anna", "s1", TOKENS)

    def fails(_names):
        raise DiskError(talker.tier.root, OSError(5, "Input/output error"))

    talker.tier.ledger.touch = fails
    assert talker.hit("anna", TOKENS) == 699


def test_nothing_stays_open_when_a_fetch_fails(talker):
    talker.say("anna", "s1", TOKENS)
    before = open_files()

    def fails(_names):
        raise RuntimeError("a defect")

    talker.tier.ledger.touch = fails
    with pytest.raises(RuntimeError, match="a defect"):
        talker.fetch("anna", TOKENS)
    assert open_files() == before


def test_closing_twice_does_nothing(talker):
    talker.say("anna", "s1", TOKENS)
    before = open_files()
    prefix = talker.fetch("anna", TOKENS)
    assert open_files() == before + 3
    prefix.close()
    prefix.close()
    assert open_files() == before


def test_many_fetches_at_once_read_what_is_theirs(talker):
    for seed in range(4):
        talker.say("anna", f"s{seed}", tokens_of(seed, 600 + seed))
    hits: list[int] = []

    def work(seed: int) -> None:
        for _ in range(5):
            hits.append(talker.hit("anna", tokens_of(seed, 600 + seed)) - 599 - seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert hits == [0] * 20


def test_a_prefetch_reads_nothing_and_never_raises(talker, tmp_path):
    talker.say("anna", "s1", TOKENS)
    for session_id in ("s1", "nobody", "../../etc/passwd"):
        talker.tier.prefetch("anna", session_id)
    deadline = time.monotonic() + 10
    while talker.tier.stats()["prefetched_sessions"] < 2:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    talker.tier.close()
    talker.tier.prefetch("anna", "s1")
