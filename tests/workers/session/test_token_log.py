"""A session without its files: all that it says comes back, and damage is told from it."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kv_tier.format import CorruptFile
from kv_tier.manifest import Checkpoint, Message
from tests.workers.session.fakes import manifest_of
from workers.session import token_log
from workers.session.token_log import packed, unpacked

SAID = (Message("user", "Hi \ud83d"), Message("assistant", "Hey", begin=3, end=5))
KV = {"num_kv": 2, "tail": b"t" * 32, "checkpoints": (Checkpoint(2, b"s" * 32),)}


@given(st.lists(st.integers(0, 2**31 - 1), min_size=5), st.text(max_size=40))
@settings(max_examples=50)
def test_all_but_the_kv_comes_back(token_ids, text):
    said = (*SAID, Message("user", text))
    whole = manifest_of(generation=7, token_ids=token_ids, messages=said, last_request="r", **KV)
    log = unpacked(packed(whole), "default", "s")
    assert log == manifest_of(generation=7, token_ids=token_ids, messages=said, last_request="r")


def test_damage_is_found_or_is_of_what_nobody_needs():
    """The last bytes of zlib's own say nothing that is not known before them."""
    whole = manifest_of(token_ids=range(50), messages=SAID)
    data = packed(whole)
    broken = [data[:length] for length in range(len(data))]
    broken += [data[:i] + bytes([data[i] ^ 1]) + data[i + 1 :] for i in range(len(data))]
    found = 0
    for one in broken:
        try:
            assert unpacked(one, "default", "s") == whole
        except CorruptFile:
            found += 1
    assert found > len(broken) - 20


def test_it_is_taken_for_no_other_sessions():
    data = packed(manifest_of())
    for names in (("default", "t"), ("acme", "s")):
        with pytest.raises(CorruptFile, match="it is of default/s"):
            unpacked(data, *names)


def test_one_that_is_too_large_is_none(monkeypatch):
    monkeypatch.setattr(token_log, "LOG_BYTES_MAX", 100)
    assert packed(manifest_of(token_ids=range(5000))) == b""


def test_what_unpacks_without_an_end_is_refused(monkeypatch):
    data = packed(manifest_of(token_ids=range(5000)))
    monkeypatch.setattr(token_log, "PLAIN_BYTES_MAX", 1000)
    with pytest.raises(CorruptFile):
        unpacked(data, "default", "s")
