"""The manifests that a turn leaves behind say what is so, and carry only KV of the same tokens."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv_tier.manifest import Checkpoint
from tests.workers.session.fakes import IDENTITY, kept_of, manifest_of
from workers.session.turn import CHECKPOINTS_MAX, ends_of, kv_of, with_kv, with_state

KEYS = tuple(bytes([n]) * 32 for n in range(10))
MARK = Checkpoint(512, b"c" * 32)


def head_of(num_tokens=601, num_kv=600):
    return manifest_of(
        token_ids=range(num_tokens),
        num_kv=num_kv,
        blocks=KEYS[: num_kv // 256],
        tail=b"t" * 32,
        checkpoints=(MARK,),
    )


def test_a_longer_log_carries_all_kv_of_the_shorter_one():
    head = head_of()
    assert kv_of(head, range(900), IDENTITY.fingerprint) == {
        "num_kv": 600, "blocks": head.blocks, "tail": head.tail, "checkpoints": (MARK,),
    }  # fmt: skip


@pytest.mark.parametrize(("common", "num_kv", "checkpoints"), [(550, 512, (MARK,)), (300, 256, ())])
def test_a_log_that_diverges_carries_what_lies_before(common, num_kv, checkpoints):
    ids = [*range(common), *[9999] * 400]
    assert kv_of(head_of(), ids, IDENTITY.fingerprint) == {
        "num_kv": num_kv, "blocks": KEYS[: num_kv // 256], "tail": None, "checkpoints": checkpoints,
    }  # fmt: skip


def test_kv_of_another_arithmetic_is_not_carried():
    assert kv_of(head_of(), range(900), b"o" * 32) == {}
    assert kv_of(None, range(900), b"o" * 32) == {}


@given(num_kv=st.integers(1, 900), common=st.integers(0, 900))
def test_what_is_carried_fits_together(num_kv, common):
    head = head_of(num_kv + 1, num_kv)
    ids = [*range(min(common, num_kv + 1)), *[9999] * 50]
    kv = kv_of(head, ids, IDENTITY.fingerprint)
    assert len(kv["blocks"]) == kv["num_kv"] // 256
    assert kv["num_kv"] <= common
    if kv["tail"] is None:
        assert kv["num_kv"] % 256 == 0
    assert all(mark.position <= common for mark in kv["checkpoints"])


@pytest.mark.parametrize("num_kv", [1, 255, 256, 257, 512, 600])
def test_what_was_written_is_named(num_kv):
    kept = kept_of(num_kv)
    manifest = with_kv(manifest_of(generation=4), kept)
    assert manifest.blocks == tuple(key for key, _ in kept.blocks)
    assert (manifest.num_kv, manifest.tail) == (num_kv, kept.tail and kept.tail[0])


def test_a_session_keeps_few_checkpoints_the_newest_last():
    manifest = manifest_of()
    for num_kv in range(1, 20):
        manifest = with_state(manifest, kept_of(num_kv, state=True))
    positions = [mark.position for mark in manifest.checkpoints]
    assert positions == list(range(20 - CHECKPOINTS_MAX, 20))


def test_the_ends_looked_at_are_where_somebody_may_have_stopped():
    head = head_of()
    assert ends_of(range(1000), head, has_state=False) == [512, 600, 999]
    assert ends_of(range(1000), head_of(701), has_state=False) == [512, 600, 700, 999]
    assert ends_of(range(1000), head, has_state=True) == [256, 512, 600, 768, 999]
    assert ends_of(range(300), head, has_state=False) == [299]
    assert ends_of([1], None, has_state=True) == []
