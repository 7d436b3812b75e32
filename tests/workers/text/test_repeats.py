"""Counted repetitions are bounded before a grammar is compiled, however they are written."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.text.grammar import BadGrammar, Wanted, check, grammar_of
from workers.text.repeats import written_out


def of_pattern(pattern):
    return f"start: %json {json.dumps({'type': 'string', 'pattern': pattern})}"


BOMBS = {
    "nested": of_pattern("^((((a{100}){100}){100}){100})$"),
    "counts of counts": of_pattern("a{100}{100}{100}"),
    "optional": of_pattern("((a{500})?{500})"),
    "open ended": of_pattern("((a{500,}){,500})"),
    "escaped": 'start: %json {"pattern": "((a\\u007b500}){\\u0035\\u0030\\u0030}x{2})"}',
    "quotes within": of_pattern('"((a{100}"){100}"){100}'),
    "an expression of Lark": "start: /((a{100}){100}){100}/",
    "rules of Lark": 'start: (("a"{100}){100}){100}',
    "a count without end": 'start: "a"{99999999999999999999}',
}


@pytest.mark.parametrize("grammar", BOMBS.values(), ids=BOMBS)
def test_a_bomb_is_refused_before_it_is_compiled(grammar):
    with pytest.raises(BadGrammar, match="repetitions that may come to"):
        check(f"%llguidance {{}}\n{grammar}\n")


@pytest.mark.parametrize(
    "pattern",
    [
        "^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$",
        r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}(:\d{2}(\.\d{1,9})?)?Z$",
        r"^((25[0-5]|2[0-4]\d|1?\d?\d)\.){3}\d{1,3}$",
        "^[A-Za-z0-9+/]{1,4000}={0,2}$",
        "^.{1,20000}$",
    ],
)
def test_what_people_write_is_taken(pattern):
    check(grammar_of(Wanted(form="", schema={"type": "string", "pattern": pattern})))


@given(st.lists(st.integers(1, 50), min_size=1, max_size=6))
def test_the_bound_is_never_too_small(counts):
    pattern, size = "a", 1
    for count in counts:
        pattern, size = f"({pattern}){{{count}}}", size * count
    assert written_out(of_pattern(pattern)) >= size
