"""Bytes are reserved before they are written; no budget is exceeded, whoever writes at once."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kv_tier.budget import OverBudget, TierLimits
from kv_tier.files import DiskError, DiskFull, OsFiles
from kv_tier.names import name_of
from tests.kv_tier.talker import BLOCK_FILE, Talker, tokens_of

MANIFEST = 8192  # what a small session's manifests are counted as
LEASED_MS = 3_600_001


@pytest.fixture
def open_talker(tmp_path):
    """A function that opens the same folder with other limits."""
    talkers = []

    def open_it(**named) -> Talker:
        files = named.pop("files", None)
        talkers.append(Talker(tmp_path / "kv", TierLimits(**named), files=files))
        return talkers[-1]

    yield open_it
    for talker in talkers:
        talker.close()


def blocks(seed: int, count: int) -> list[int]:
    """Tokens whose KV is so many blocks; one more was sampled."""
    return tokens_of(seed, 256 * count + 1)


def test_room_is_made_by_the_policy(open_talker):
    talker = open_talker(quota_bytes=4 * BLOCK_FILE + 3 * MANIFEST)
    for seed in (1, 2):
        talker.say("anna", f"s{seed}", blocks(seed, 2))
        talker.clock.ms += 1
    assert talker.hit("anna", blocks(1, 2)) == 512
    talker.clock.ms += LEASED_MS
    talker.say("anna", "s3", blocks(3, 1))
    assert talker.hit("anna", blocks(1, 2)) == 512, "it was used again"
    assert talker.hit("anna", blocks(2, 2)) == 256, "it lost its end"
    assert talker.hit("anna", blocks(3, 1)) == 256
    assert talker.tier.stats()["evicted_objects"] == 1


def test_the_token_log_stays_when_kv_goes(open_talker):
    talker = open_talker(quota_bytes=2 * BLOCK_FILE + 2 * MANIFEST)
    first = talker.say("anna", "s1", blocks(1, 2))
    talker.clock.ms += LEASED_MS
    talker.say("anna", "s2", blocks(2, 2))
    assert talker.hit("anna", blocks(1, 2)) == 0
    assert talker.tier.sessions.head("anna", "s1") == first


def test_a_tenant_makes_room_of_its_own(open_talker):
    talker = open_talker(tenant_bytes=2 * BLOCK_FILE + 2 * MANIFEST)
    talker.say("bert", "s1", blocks(1, 2))
    talker.say("anna", "s1", blocks(1, 2))
    talker.clock.ms += LEASED_MS
    talker.say("anna", "s2", blocks(2, 2))
    assert talker.hit("anna", blocks(1, 2)) == 0
    assert talker.hit("bert", blocks(1, 2)) == 512


def test_what_can_never_fit_evicts_nobody(open_talker):
    talker = open_talker(quota_bytes=4 * BLOCK_FILE + MANIFEST)
    talker.say("anna", "s1", blocks(1, 2))
    talker.clock.ms += LEASED_MS
    with pytest.raises(OverBudget, match="no room for 8192 bytes of 'bert'"):
        talker.tier.put("bert", talker.sources("bert", blocks(2, 5)[:-1]))
    written = talker.hit("bert", blocks(2, 5))
    assert written == 1024 - talker.hit("anna", blocks(1, 2)), "what fitted was written"


def test_over_budget_is_a_full_disk():
    assert issubclass(OverBudget, DiskFull)


def test_what_was_just_fetched_does_not_go(open_talker):
    talker = open_talker(quota_bytes=2 * BLOCK_FILE + MANIFEST)
    talker.say("anna", "s1", blocks(1, 2))
    assert talker.hit("anna", blocks(1, 2)) == 512
    with pytest.raises(OverBudget):
        talker.say("anna", "s2", blocks(2, 1))
    talker.clock.ms += LEASED_MS
    talker.tier.put("anna", talker.sources("anna", blocks(2, 1)[:-1]))
    assert talker.hit("anna", blocks(2, 1)) == 256


def test_what_waits_for_its_manifest_does_not_go(open_talker):
    talker = open_talker(quota_bytes=2 * BLOCK_FILE)
    talker.tier.put("anna", talker.sources("anna", blocks(1, 2)[:-1]))
    with pytest.raises(OverBudget):
        talker.tier.put("anna", talker.sources("anna", blocks(2, 1)[:-1]))
    assert talker.hit("anna", blocks(1, 2)) == 512


def test_a_pinned_session_does_not_go(open_talker):
    talker = open_talker(quota_bytes=2 * BLOCK_FILE + 3 * MANIFEST)
    talker.say("anna", "s1", blocks(1, 1))
    talker.tier.pin("anna", "s1", True)
    talker.say("anna", "s2", blocks(2, 1))
    talker.clock.ms += LEASED_MS
    talker.say("anna", "s3", blocks(3, 1))
    assert talker.hit("anna", blocks(1, 1)) == 256
    assert talker.hit("anna", blocks(2, 1)) == 0
    talker.tier.pin("anna", "s1", False)
    talker.clock.ms += LEASED_MS
    talker.tier.put("anna", talker.sources("anna", blocks(4, 2)[:-1]))
    assert talker.hit("anna", blocks(1, 1)) == 0


def test_a_mapped_file_stays_readable_when_it_is_evicted(open_talker):
    talker = open_talker(quota_bytes=2 * BLOCK_FILE + MANIFEST)
    talker.say("anna", "s1", blocks(1, 2))
    prefix = talker.fetch("anna", blocks(1, 2))
    views = {key: opened.view() for key, opened in prefix.blocks.items()}
    talker.clock.ms += LEASED_MS
    talker.tier.put("anna", talker.sources("anna", blocks(2, 2)[:-1]))
    assert not any(talker.tier.objects.has("block", key) for key in views)
    talker.check("anna", blocks(1, 2), prefix)
    prefix.close()
    assert all(view.sum() > 0 for view in views.values())


def test_the_disk_keeps_what_must_stay_free(open_talker, tmp_path):
    disk = os.statvfs(tmp_path)
    talker = open_talker(keep_free_bytes=disk.f_bavail * disk.f_frsize + (1 << 30))
    with pytest.raises(OverBudget):
        talker.tier.put("anna", talker.sources("anna", blocks(1, 1)[:-1]))
    assert talker.size() == 0


def test_a_log_is_refused_when_there_is_no_room_for_it(open_talker):
    talker = open_talker(quota_bytes=MANIFEST)
    talker.tier.commit(talker.manifest("anna", "s1", [1, 2], kv=False))
    with pytest.raises(OverBudget):
        talker.tier.commit(talker.manifest("anna", "s2", [1, 2], kv=False))
    talker.tier.commit(talker.manifest("anna", "s1", [1, 2, 3], kv=False))
    assert talker.tier.sessions.head("anna", "s2") is None
    assert talker.tier.ledger.reserved_bytes() == 0


class Stubborn(OsFiles):
    """One file that cannot be deleted."""

    def __init__(self) -> None:
        super().__init__()
        self.stubborn: Path | None = None

    def remove(self, path: Path) -> bool:
        if path == self.stubborn:
            raise DiskError(path, OSError(1, "Operation not permitted"))
        return super().remove(path)


def test_one_undeletable_file_does_not_wedge_eviction(open_talker):
    """sglang#31485."""
    files = Stubborn()
    talker = open_talker(quota_bytes=2 * BLOCK_FILE + 3 * MANIFEST, files=files)
    key = talker.say("anna", "s1", blocks(1, 1)).blocks[0]
    talker.clock.ms += 1
    talker.say("anna", "s2", blocks(2, 1))
    files.stubborn = talker.tier.objects.path("block", key)
    talker.clock.ms += LEASED_MS
    talker.say("anna", "s3", blocks(3, 1))
    assert talker.hit("anna", blocks(3, 1)) == 256
    assert talker.hit("anna", blocks(1, 1)) == 256, "what cannot be deleted is still counted"
    assert talker.hit("anna", blocks(2, 1)) == 0
    assert name_of("block", key) in talker.tier.ledger.names()


def test_a_failed_write_gives_its_reservation_back(open_talker):
    class Full(OsFiles):
        def write_file(self, target, *args, **named):
            raise DiskFull(target, OSError(28, "No space left on device"))

    talker = open_talker(quota_bytes=1 << 30)
    talker.tier.objects._files = Full()
    with pytest.raises(DiskFull):
        talker.tier.put("anna", talker.sources("anna", blocks(1, 1)[:-1]))
    assert talker.tier.ledger.reserved_bytes() == 0
    assert talker.tier.ledger.totals().num_objects == 0


WRITER = """
import sys
from pathlib import Path
from kv_tier.budget import OverBudget, TierLimits
from tests.kv_tier.talker import Talker, tokens_of
root, seed, quota, tenant = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
talker = Talker(root, TierLimits(quota_bytes=quota, tenant_bytes=quota * 3 // 4))
most = 0
def taken(db):
    (sessions,) = db.execute("SELECT count(*) FROM sessions").fetchone()
    return talker.size() + 8192 * sessions
for turn in range(25):
    try:
        talker.say(tenant, f"s{seed}", tokens_of(100 * seed + turn, 513))
    except OverBudget:
        pass
    most = max(most, talker.tier.ledger._file.write(taken))
print(most)
"""


def test_two_processes_at_once_never_exceed_the_budget(tmp_path):
    """What is on the disk is looked at after every write, while nobody can reserve."""
    quota = 9 * BLOCK_FILE + 3 * MANIFEST
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path / "kv"), str(seed), str(quota), tenant],
            cwd=Path.cwd(),
            stdout=subprocess.PIPE,
            text=True,
        )
        for seed, tenant in ((1, "anna"), (2, "anna"), (3, "bert"))
    ]
    most = [int(writer.communicate(timeout=120)[0]) for writer in writers]
    assert quota // 2 < max(most) <= quota
    talker = Talker(tmp_path / "kv")
    assert talker.tier.ledger.totals().num_bytes == talker.size() + 3 * MANIFEST <= quota
    assert talker.tier.ledger.totals("anna").num_bytes <= quota * 3 // 4
    assert talker.tier.ledger.reserved_bytes() == 0
    talker.close()
