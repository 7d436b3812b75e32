"""How much of a prompt is known: by what is in RAM and in files, with and without state."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv_tier.beginning import Beginnings
from kv_tier.chain import Chain

CHAIN = Chain(bytes(32), "default", bytes(32))
TOKENS = list(range(700))
NAMES = {CHAIN.key_at(TOKENS, end): end for end in range(1, 701)}


def longest(places: dict[str, str], *, ends=(), has_state=False, num_tokens=700):
    """places: where what is, by kind and end: {"block 256": "file"}."""
    beginnings = Beginnings(CHAIN, TOKENS[:num_tokens], ends, has_state=has_state)
    return beginnings.longest(lambda kind, key: places.get(f"{kind} {NAMES[key]}", ""))


def said(pieces) -> list[str]:
    return [f"{kind} {NAMES[key]}" for kind, key, _ in pieces]


BLOCKS = {"block 256": "file", "block 512": "file"}
CASES = [
    # what is there, ends, state, tokens known
    ({}, (), False, 0),
    (BLOCKS, (), False, 512),
    ({"block 512": "file"}, (), False, 0),
    ({**BLOCKS, "tail 600": "file"}, (600,), False, 600),
    ({**BLOCKS, "tail 600": "file"}, (), False, 512),
    ({**BLOCKS, "tail 600": "file", "tail 650": "ram"}, (600, 650), False, 650),
    ({"block 256": "file", "tail 600": "file"}, (600,), False, 256),
    ({"tail 100": "file"}, (100,), False, 100),
    (BLOCKS, (600,), True, 0),
    ({**BLOCKS, "state 512": "file"}, (), True, 512),
    ({**BLOCKS, "state 256": "ram"}, (), True, 256),
    ({**BLOCKS, "tail 600": "file", "state 600": "file"}, (600,), True, 600),
    ({**BLOCKS, "tail 600": "file", "state 512": "file"}, (600,), True, 512),
    ({**BLOCKS, "state 600": "file"}, (600,), True, 0),
    ({**BLOCKS, "state 300": "file"}, (300,), True, 300),
    ({**BLOCKS, "state 300": "file"}, (), True, 0),
]


@pytest.mark.parametrize(("places", "ends", "has_state", "expected"), CASES)
def test_how_much_is_known(places, ends, has_state, expected):
    assert longest(places, ends=ends, has_state=has_state).end == expected


def test_one_token_is_always_left_to_compute():
    assert longest(BLOCKS, num_tokens=512).end == 511
    assert longest({"block 256": "ram"}, num_tokens=256).end == 255
    assert longest({"tail 1": "ram"}, num_tokens=1, ends=(1,)).end == 0
    assert longest({}, num_tokens=0).end == 0


def test_what_is_in_ram_is_not_read():
    places = {"block 256": "ram", "block 512": "file", "tail 600": "ram"}
    found = longest(places, ends=(600,))
    assert said(found.pieces) == ["block 256", "block 512", "tail 600"]
    assert said(found.files) == ["block 512"]


def test_nothing_past_the_end_is_read():
    places = BLOCKS | {"tail 600": "file", "state 256": "file"}
    assert said(longest(places, ends=(600,), has_state=True).files) == ["block 256", "state 256"]


def test_inside_a_block_a_tail_is_read_before_the_whole_block():
    places = BLOCKS | {"state 300": "file"}
    with_tail = longest(places | {"tail 300": "file"}, ends=(300,), has_state=True)
    assert said(with_tail.files) == ["block 256", "tail 300", "state 300"]
    in_ram = longest(places | {"tail 300": "file", "block 512": "ram"}, ends=(300,), has_state=True)
    assert said(in_ram.files) == ["block 256", "state 300"]


@given(
    st.sets(st.sampled_from([f"block {end}" for end in (256, 512)]), max_size=2),
    st.sets(st.integers(1, 699), max_size=4),
    st.sets(st.integers(1, 699), max_size=4),
    st.booleans(),
)
def test_everything_before_the_end_is_there(blocks, tails, states, has_state):
    places = dict.fromkeys([*blocks, *(f"tail {i}" for i in tails)], "file")
    places |= dict.fromkeys((f"state {i}" for i in states), "file")
    found = longest(places, ends=sorted(tails | states), has_state=has_state)
    assert set(said(found.files)) <= places.keys()
    covered = 0
    for kind, key, num_tokens in found.pieces:
        if kind != "state":
            assert covered == NAMES[key] - num_tokens, "a hole"
            covered = NAMES[key]
    assert covered >= found.end
    if has_state and found.end:
        assert f"state {found.end}" in said(found.files)
