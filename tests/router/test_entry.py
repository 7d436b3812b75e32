"""Stream entries: the msgpack map, the plain strings of redis-cli, and what is neither."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.admit import admit, reject_entry
from router.entry import BODY_BYTES_MAX, read_entry
from router.refusal import Refused
from tests.router.wrong_fields import HOOK

ENTRY = "1799999999000-3"


def take(door, fields, *, sla="standard", entry_id=ENTRY, plain=False):
    return admit(fields, door, sla=sla, entry_id=entry_id, plain=plain)


def test_plain_strings_mean_what_a_map_would(door):
    plain = {
        "messages": '[{"role": "user", "content": "Hello"}]',
        "max_tokens": "16",
        "temperature": "0.5",
        "top_k": "3",
        "seed": str(2**64 - 1),
        "stop": '["a", "b"]',
        "logprobs": "2",
        "deadline_ms": "1000",
        "webhook_url": HOOK,
        "metadata": '{"order": 7}',
        "n": "1",
        "v": "1",
    }
    typed = {
        "messages": [{"role": "user", "content": "Hello"}],
        "max_tokens": 16,
        "temperature": 0.5,
        "top_k": 3,
        "seed": 2**64 - 1,
        "stop": ["a", "b"],
        "logprobs": 2,
        "deadline_ms": 1000,
        "webhook": {"url": HOOK},
        "metadata": {"order": 7},
    }
    assert take(door, typed) == take(door, plain, plain=True)


@pytest.mark.parametrize(("written", "stop"), [("END", "END"), ('"E\\n"', "E\n"), ("42", "42")])
def test_a_plain_stop_is_a_string_or_json(door, written, stop):
    assert (stop,) == take(door, {"prompt": "x", "stop": written}, plain=True).params.stop


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"max_tokens": "many"}, "max_tokens"),
        ({"max_tokens": ""}, "max_tokens"),
        ({"max_tokens": "1_0"}, "max_tokens"),
        ({"max_tokens": "9" * 5000}, "max_tokens"),
        ({"temperature": "nan"}, "temperature"),
        ({"stop": ""}, "stop"),
        ({"stop": "["}, "stop"),
        ({"metadata": "{"}, "metadata"),
        ({"metadata": "[" * 100_000}, "metadata"),
        ({"webhook": "https://hooks.example.com"}, "webhook"),
        ({"n": "2"}, "n"),
        ({"prompt": "\udcff"}, "prompt"),
        ({"prompt": "Hello", "messages": "[]"}, "prompt"),
    ],
)
def test_a_wrong_plain_string_is_named(door, fields, field):
    assert field == take(door, {"prompt": "Hello", **fields}, plain=True).field


@pytest.mark.parametrize(
    ("entry", "field", "code"),
    [
        ({b"m": b"\xc1"}, "m", "undecodable"),
        ({b"m": b""}, "m", "undecodable"),
        ({b"m": b"\x81\xa1"}, "m", "undecodable"),
        ({b"m": b"\x01"}, "m", "undecodable"),
        ({b"m": b"\x91" * 5000}, "m", "undecodable"),
        ({b"m": b"\x81\x90\x01"}, "m", "undecodable"),
        ({b"m": b"\x80\x80"}, "m", "undecodable"),
        ({b"m": b"\xdf\xff\xff\xff\xff"}, "m", "undecodable"),
        ({b"prompt": b"x" * BODY_BYTES_MAX}, "request", "request_too_large"),
    ],
)
def test_an_entry_that_cannot_be_read_is_refused(entry, field, code):
    with pytest.raises(Refused) as refused:
        read_entry(entry)
    reject = reject_entry(refused.value, sla="batch", entry_id=ENTRY)
    assert (field, code, f"batch-{ENTRY}") == (reject.field, reject.code, reject.request_id)


def test_bytes_that_are_no_utf8_are_named_with_their_field(door):
    map_of_one = b"\x81\xa6prompt\xa2\xff\xfe"
    for entry in ({b"prompt": b"\xff\xfe"}, {b"m": map_of_one}):
        fields, plain = read_entry(entry)
        reject = take(door, fields, plain=plain)
        assert (reject.field, reject.code) == ("prompt", "bad_request")
        assert "valid UTF-8" in reject.reason


@given(entry=st.dictionaries(st.sampled_from([b"m", b"prompt", b"stop", b"id"]), st.binary()))
def test_no_entry_raises_anything_but_a_refusal(door, entry):
    try:
        fields, plain = read_entry(entry)
    except Refused as refused:
        refused.reason.encode()
        return
    take(door, fields, plain=plain)
