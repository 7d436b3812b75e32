"""A mask allows what the grammar says, however its tokens come: one by one, or from a journal."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from workers.text.grammar import BadGrammar, Wanted, check, grammar_of
from workers.text.mask import Masker

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "maxLength": 8},
                "days": {"type": "integer", "minimum": 1, "maximum": 9},
                "unit": {"type": "string", "enum": ["c", "f"]},
            },
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


@pytest.fixture(scope="module")
def masker(tiny_text):
    return Masker(tiny_text)


def of_schema(schema, **more):
    return grammar_of(Wanted("hermes", schema=schema, **more))


def walk(tiny_text, mask, seed, most=400):
    """Token ids as a model without any sense draws them; ends with an end token."""
    draw, ids = np.random.default_rng(seed), []
    while len(ids) < most:
        allowed = np.flatnonzero(mask.allowed())
        assert not mask.error
        ids.append(int(draw.choice(allowed)))
        if ids[-1] in tiny_text.end_ids:
            return ids
        mask.advance(ids[-1])
    return ids


def written(text, ids):
    return b"".join(map(text.token_bytes, ids)).decode(errors="replace")


@given(seed=st.integers(0, 2**32))
def test_whatever_is_drawn_satisfies_the_schema(tiny_text, masker, seed):
    ids = walk(tiny_text, masker.start(of_schema(SCHEMA)), seed)
    answer = json.loads(written(tiny_text, ids))
    assert Draft202012Validator(SCHEMA).is_valid(answer)
    assert "\n" not in written(tiny_text, ids)


@pytest.mark.parametrize("cut", [0, 1, 7])
def test_a_journal_brings_a_mask_to_the_same_place(tiny_text, masker, cut):
    ids = walk(tiny_text, masker.start(of_schema(SCHEMA)), seed=5)[:-1]
    begun, resumed = masker.start(of_schema(SCHEMA)), Masker(tiny_text).start(of_schema(SCHEMA))
    for token_id in ids[:cut]:
        begun.advance(token_id)
    for token_id in ids[:cut]:
        resumed.advance(token_id)
    assert np.array_equal(begun.allowed(), resumed.allowed())


def test_takes_says_of_one_token_what_allowed_says_of_all(tiny_text, masker):
    mask = masker.start(of_schema({"type": "integer", "minimum": 10, "maximum": 99}))
    for token_id in tiny_text.encode_inside("42"):
        taken = {i for i in range(tiny_text.vocab_size) if mask.takes(i)}
        assert set(np.flatnonzero(mask.allowed()).tolist()) <= taken
        assert token_id in taken
        mask.advance(token_id)
    assert set(np.flatnonzero(mask.allowed()).tolist()) == set(tiny_text.end_ids)
    assert {i for i in range(tiny_text.vocab_size) if mask.takes(i)} == set(tiny_text.end_ids)


def test_padding_and_control_tokens_are_never_allowed(tiny_text, masker):
    mask = masker.start(grammar_of(Wanted("hermes", (WEATHER,), "auto")))
    silent = {
        i for i in range(tiny_text.vocab_size) if not tiny_text.token_bytes(i)
    } - tiny_text.end_ids
    assert silent
    assert not silent & set(np.flatnonzero(mask.allowed()).tolist())


@pytest.mark.parametrize("form", ["hermes", "xml", "llama"])
@pytest.mark.parametrize("seed", range(5))
def test_a_required_call_is_a_call(tiny_text, masker, form, seed):
    grammar = grammar_of(Wanted(form, (WEATHER,), "required", most=1))
    said = written(tiny_text, walk(tiny_text, masker.start(grammar), seed, most=2000))
    begin = {"hermes": "<tool_call>\n{", "xml": "<tool_call>\n<function=weather>", "llama": "{"}
    assert said.startswith(begin[form])
    assert said.rstrip().endswith({"llama": "}"}.get(form, "</tool_call>")) or len(said) > 500


def test_thoughts_come_before_what_is_constrained(tiny_text, masker):
    grammar = of_schema({"enum": ["yes"]}, thoughts="template")
    mask = masker.start(grammar)
    for token_id in [
        *tiny_text.encode_inside("let me see {"),
        *tiny_text.encode_inside("</think>"),
    ]:
        assert mask.takes(token_id)
        mask.advance(token_id)
    answer = [*tiny_text.encode_inside("\n\n"), *tiny_text.encode_inside('"yes"')]
    for token_id in answer:
        assert mask.takes(token_id), written(tiny_text, [token_id])
        mask.advance(token_id)
    assert set(np.flatnonzero(mask.allowed()).tolist()) == set(tiny_text.end_ids)


def test_text_is_free_until_a_call_begins(tiny_text, masker):
    mask = masker.start(grammar_of(Wanted("hermes", (WEATHER,), "auto")))
    for token_id in tiny_text.encode_inside('It is {"name": 1} </tool_call> sunny. '):
        assert mask.takes(token_id)
        mask.advance(token_id)
    assert mask.takes(min(tiny_text.end_ids))
    for token_id in tiny_text.encode_inside('<tool_call>\n{"name": "'):
        mask.advance(token_id)
    assert not mask.error
    assert not mask.takes(min(tiny_text.end_ids))
    assert mask.takes(tiny_text.encode_inside("w")[0])
    assert not mask.takes(tiny_text.encode_inside("n")[0])


def test_a_grammar_that_does_not_compile_is_an_error_of_the_mask(masker):
    assert masker.start("start: (").error


def exponential(depth):
    """One line of schema for each level, two uses of the level below in each."""
    levels = {
        f"l{n}": {
            "type": "object",
            "properties": {key: {"$ref": f"#/$defs/l{n - 1}"} for key in "ab"},
            "required": ["a", "b"],
        }
        for n in range(1, depth)
    }
    return {"$defs": {"l0": {"type": "string"}, **levels}, "$ref": f"#/$defs/l{depth - 1}"}


@pytest.mark.parametrize(
    "schema",
    [
        {
            "allOf": [
                {"anyOf": [{"required": [f"p{n}"]}, {"required": [f"q{n}"]}]} for n in range(40)
            ]
        },
        {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(1500)}},
        {"enum": [f"{n:09}" for n in range(20_000)]},
        json.loads('{"items":' * 900 + "{}" + "}" * 900),
    ],
    ids=["all of any", "properties", "words", "deep"],
)
def test_a_schema_without_bounds_is_refused_in_one_sentence(schema):
    with pytest.raises(BadGrammar) as caught:
        check(of_schema(schema))
    assert len(str(caught.value)) < 300 and "\n" not in str(caught.value)


def test_levels_that_double_are_never_unrolled(masker):
    """2^40 texts long at least: the grammar has a rule for each level, the answer no end."""
    grammar = of_schema(exponential(40))
    check(grammar)
    mask = masker.start(grammar)
    assert mask.allowed().any() and not mask.error


def test_a_schema_is_not_fetched_from_elsewhere():
    with pytest.raises(BadGrammar, match="does not fetch"):
        check(of_schema({"$ref": "http://192.0.2.1/x.json"}))


def test_the_style_of_json_is_ours_whatever_the_schema_says(tiny_text, masker):
    own = {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"]}
    loose = {**own, "additionalProperties": False, "x-guidance": {"whitespace_flexible": True}}
    said = written(tiny_text, walk(tiny_text, masker.start(of_schema(loose)), seed=1))
    assert said == '{"a": 1}'


def test_nothing_is_asked_of_a_free_answer():
    assert grammar_of(Wanted("hermes")) == ""
    assert grammar_of(Wanted("llama", (WEATHER,), "auto")) == ""


def chain(levels, **more):
    """References that lead from one to the next: the compiler follows them by recursion."""
    schemas = {f"{n}": {**more, "$ref": f"#/$defs/{n + 1}"} for n in range(levels)}
    return {"$defs": {**schemas, f"{levels}": {"type": "integer"}}, "$ref": "#/$defs/0"}


def rules(levels):
    steps = "\n".join(f'a{n}: "x" a{n + 1}' for n in range(levels))
    return f'%llguidance {{}}\nstart: a0\n{steps}\na{levels}: "x"'


@pytest.mark.parametrize(
    "grammar", [of_schema(chain(840)), rules(890)], ids=["references", "rules"]
)
def test_a_chain_that_is_taken_is_compiled_within_the_stack(tiny_text, masker, grammar):
    """A stack that ends takes the process with it: the node's own, and the next one's."""
    check(grammar)
    mask = masker.start(grammar)
    assert mask.allowed().any() and not mask.error


@pytest.mark.parametrize(
    "grammar", [of_schema(chain(900)), rules(1500)], ids=["references", "rules"]
)
def test_a_longer_chain_is_refused_before_it_is_compiled(grammar):
    with pytest.raises(BadGrammar, match="at most 900"):
        check(grammar)
