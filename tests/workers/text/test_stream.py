"""What a client sees while tokens come: whole characters, and nothing of a stop string."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.text.stream import TextStream

PIECES = ["a", "b", "ab", "\n", "é", "€", "😀", "aab", "ba"]
BYTES = st.lists(st.sampled_from([p.encode() for p in PIECES]) | st.binary(max_size=3)).map(
    b"".join
)
STOPS = st.lists(st.sampled_from([*PIECES, "abab", "aba", "bb", "é€"]), max_size=3).map(tuple)


@pytest.fixture(scope="session")
def byte_ids(tiny_text):
    """byte -> the token that prints just it"""
    return {printed[0]: i for i in range(512) if len(printed := tiny_text.token_bytes(i)) == 1}


def pushed(stream, ids):
    return [stream.push(i) for i in ids] + [stream.flush()]


def cut_at_first_stop(text, stop):
    """The text before the stop string that ends first; of those that end together, the longest."""
    ends = [(i, s) for i in range(len(text) + 1) for s in stop if text[:i].endswith(s)]
    if not ends:
        return text
    first = min(i for i, _ in ends)
    return text[: first - max(len(s) for i, s in ends if i == first)]


@given(data=BYTES, stop=STOPS)
def test_the_parts_joined_are_the_whole_cut_at_the_first_stop(tiny_text, byte_ids, data, stop):
    stream = TextStream(tiny_text, stop)
    whole = data.decode("utf-8", "replace")
    expected = cut_at_first_stop(whole, stop)
    assert "".join(pushed(stream, [byte_ids[b] for b in data])) == expected
    assert stream.stopped == (expected != whole)


@given(data=BYTES, stop=STOPS)
def test_nothing_shown_is_ever_taken_back(tiny_text, byte_ids, data, stop):
    """What was shown is always a beginning of the final text: no stop string has leaked."""
    stream = TextStream(tiny_text, stop)
    final = cut_at_first_stop(data.decode("utf-8", "replace"), stop)
    shown = ""
    for byte in data:
        shown += stream.push(byte_ids[byte])
        shown.encode()
        assert final.startswith(shown)


@given(ids=st.lists(st.integers(0, 511)), stop=STOPS)
def test_a_replay_gives_the_same_parts(tiny_text, ids, stop):
    assert pushed(TextStream(tiny_text, stop), ids) == pushed(TextStream(tiny_text, stop), ids)


@given(ids=st.lists(st.integers(0, 511)))
def test_tokens_of_several_characters_join_to_the_decoded_whole(tiny_text, ids):
    whole = b"".join(map(tiny_text.token_bytes, ids)).decode("utf-8", "replace")
    assert "".join(pushed(TextStream(tiny_text, ()), ids)) == whole


@pytest.mark.parametrize(
    ("stop", "shown"),
    [
        (("b", "ab"), "xa"),  # end together: the longest wins
        (("abmain", "m"), "xaab"),  # ends first, though it begins later
        (("ain", "i"), "xaabma"),  # both within one token
        (("ain", "n", "mai"), "xaab"),
        (("q",), "xaabmain"),
    ],
)
def test_the_first_completed_stop_string_cuts(tiny_text, stop, shown):
    """`main` is one token of this vocabulary."""
    ids = tiny_text.encode("xaab") + tiny_text.encode("main")
    assert "".join(pushed(TextStream(tiny_text, stop), ids)) == shown


def test_text_that_may_begin_a_stop_string_is_held_back(tiny_text, byte_ids):
    stream = TextStream(tiny_text, ("stop",))
    assert [stream.push(byte_ids[b]) for b in b"a sto"] == ["a", " ", "", "", ""]
    assert stream.push(byte_ids[ord("a")]) == "stoa"


def test_nothing_is_shown_after_a_stop(tiny_text, byte_ids):
    stream = TextStream(tiny_text, ("b",))
    assert "".join(stream.push(byte_ids[byte]) for byte in b"abc") == "a"
    assert stream.stopped
    assert stream.flush() == ""


def test_a_character_waits_for_its_last_byte(tiny_text, byte_ids):
    stream = TextStream(tiny_text, ())
    assert [stream.push(byte_ids[b]) for b in "€".encode()] == ["", "", "€"]


def test_a_character_cut_short_is_replaced_at_the_end(tiny_text, byte_ids):
    stream = TextStream(tiny_text, ())
    assert stream.push(byte_ids[0xE2]) == ""
    assert stream.flush() == "�"


def test_an_empty_stop_string_is_our_mistake(tiny_text):
    with pytest.raises(AssertionError):
        TextStream(tiny_text, ("",))
