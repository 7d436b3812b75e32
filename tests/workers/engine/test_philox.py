"""The generator gives the published numbers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.engine.philox import philox, uniform

WORD = 0xFFFFFFFF
KNOWN_ANSWERS = [  # kat_vectors of Random123: philox4x32, 10 rounds
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((WORD,) * 4, (WORD,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN_ANSWERS)
def test_known_answers(counter, key, expected):
    assert philox(counter, key) == expected


def test_uniform_is_made_of_the_first_two_words():
    assert uniform(0, 0, 0) == ((0x6627E8D5 << 21) | (0xE169C58D >> 11)) / 2**53


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**40))
def test_uniform_lies_in_its_range(seed, position):
    assert 0 <= uniform(seed, 0, position) < 1


def test_seed_choice_and_position_each_matter():
    drawn = {
        uniform(*key) for key in [(1, 0, 0), (0, 1, 0), (0, 0, 1), (1 << 32, 0, 0), (0, 0, 1 << 32)]
    }
    assert len(drawn) == 5


def test_uniform_fills_its_range_evenly():
    tenths = [0] * 10
    for position in range(10_000):
        tenths[int(uniform(7, 0, position) * 10)] += 1
    assert min(tenths) > 880 and max(tenths) < 1120  # four standard deviations of 30
