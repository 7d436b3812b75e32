"""Who goes when room is wanted: the policy as a table."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv_tier.eviction import Candidate, choose, clock_after, gdsf_value

NOW_MS = 1_000_000


def one(name: str, value: float = 1.0, **fields: object) -> Candidate:
    fields = {"num_bytes": 10, "used_ms": NOW_MS} | fields
    parent = str(fields.pop("parent", ""))
    return Candidate(name.encode(), value=value, parent=parent.encode(), **fields)


def names(candidates: list[Candidate]) -> str:
    return "".join(candidate.name.decode() for candidate in candidates)


CASES = {
    "the least value first": (
        [one("a", 3), one("b", 1), one("c", 2)],
        30,
        "bca",
    ),
    "no more than is wanted": ([one("a", 3), one("b", 1), one("c", 2)], 11, "bc"),
    "nothing when nothing is wanted": ([one("a")], 0, ""),
    "of equal value the one that was used longest ago": (
        [one("a", used_ms=NOW_MS - 1), one("b", used_ms=NOW_MS - 2)],
        10,
        "b",
    ),
    "what no session names, whatever its value": (
        [one("a", 1), one("b", 9, is_named=False)],
        10,
        "b",
    ),
    "what is too old before what is in use": (
        [one("a", 1), one("b", 9, used_ms=NOW_MS - 501)],
        10,
        "b",
    ),
    "what nobody names before what is too old": (
        [one("a", 1, used_ms=0), one("b", 9, is_named=False)],
        20,
        "ba",
    ),
    "never what is held": ([one("a", 1, is_held=True), one("b", 9)], 20, "b"),
    "the suffix before the prefix of one chain": (
        [
            one("a", depth=256),
            one("b", depth=512, parent="a"),
            one("c", depth=600, parent="b", is_leaf=True),
        ],
        30,
        "cba",
    ),
    "a prefix counts as much as its best suffix": (
        [one("a", 1, depth=256), one("b", 5, depth=512, parent="a"), one("c", 3)],
        30,
        "cba",
    ),
    "a fork's common part goes after both ends": (
        [
            one("a", 1, depth=256),
            one("b", 1, depth=512, parent="a"),
            one("c", 7, depth=512, parent="a"),
        ],
        30,
        "bca",
    ),
    "nothing before what is held": (
        [
            one("a", 1, depth=256),
            one("b", 1, depth=512, parent="a"),
            one("c", 1, depth=768, parent="b", is_held=True),
            one("d", 9),
        ],
        40,
        "d",
    ),
    "a state goes before the block that it stands on": (
        [one("a", 1, depth=256), one("b", 1, depth=256, parent="a", is_leaf=True)],
        20,
        "ba",
    ),
    "a suffix whose prefix went long ago": ([one("b", 2, depth=512, parent="a")], 10, "b"),
}


@pytest.mark.parametrize("case", CASES)
def test_who_goes(case):
    candidates, bytes_wanted, expected = CASES[case]
    assert names(choose(candidates, bytes_wanted, NOW_MS, ttl_ms=500)) == expected
    assert names(choose(candidates[::-1], bytes_wanted, NOW_MS, ttl_ms=500)) == expected


def test_without_a_ttl_nothing_is_too_old():
    old, new = one("a", 9, used_ms=0), one("b", 1)
    assert names(choose([old, new], 10, NOW_MS)) == "b"


def test_value_is_seconds_saved_per_mebibyte_times_hits():
    assert gdsf_value(0.0, 3, 2.0, 1 << 20) == 6.0
    assert gdsf_value(0.0, 3, 2.0, 4 << 20) == 1.5
    assert gdsf_value(10.0, 0, 2.0, 1 << 20) == 10.0


def test_what_was_popular_once_is_overtaken_by_what_is_used_now():
    """The clock is the value of what went last."""
    popular = gdsf_value(0.0, 100, 1.0, 1 << 20)
    clock, uses = 0.0, 0
    while gdsf_value(clock, 1, 1.0, 1 << 20) <= popular:
        gone = one("x", gdsf_value(clock, 1, 1.0, 1 << 20))
        clock, uses = clock_after(clock, [gone]), uses + 1
    assert uses == 100


def test_the_clock_never_goes_back_and_does_not_heed_what_nobody_named():
    assert clock_after(5.0, [one("a", 3.0)]) == 5.0
    assert clock_after(5.0, [one("a", 7.0), one("b", 6.0)]) == 7.0
    assert clock_after(5.0, [one("a", 9.0, is_named=False)]) == 5.0


@st.composite
def forests(draw: st.DrawFn) -> list[Candidate]:
    """Chains that branch; whatever may stand in the ledger."""
    candidates: list[Candidate] = []
    for number in range(draw(st.integers(0, 12))):
        blocks = [c for c in candidates if not c.is_leaf]
        parent = draw(st.sampled_from([None, *blocks]))
        candidates.append(
            Candidate(
                bytes((number + 1,)),
                num_bytes=draw(st.integers(1, 5)),
                value=draw(st.sampled_from([0.0, 1.0, 2.0])),
                used_ms=draw(st.integers(0, 3)),
                depth=(parent.depth if parent else 0) + 256,
                is_leaf=draw(st.booleans()),
                parent=parent.name if parent else b"",
                is_named=draw(st.booleans()),
                is_held=draw(st.booleans()),
            )
        )
    return candidates


@given(forests(), st.integers(0, 40))
def test_whatever_goes_no_chain_loses_its_middle(candidates, bytes_wanted):
    gone = choose(candidates, bytes_wanted, 4, ttl_ms=2)
    position = {candidate.name: i for i, candidate in enumerate(gone)}
    for candidate in candidates:
        if candidate.parent in position:
            assert candidate.name in position, "a prefix went and its suffix stayed"
            assert position[candidate.name] < position[candidate.parent]
    assert not any(candidate.is_held for candidate in gone)
    before_last = sum(candidate.num_bytes for candidate in gone[:-1])
    assert not gone or before_last < bytes_wanted, "one more went than was wanted"
