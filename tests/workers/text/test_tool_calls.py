"""Calls are read out of an answer however it is cut, and what is no call stays text."""

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from workers.text.thoughts import Thought, ThoughtReader
from workers.text.tool_calls.bodies import Arguments, Call
from workers.text.tool_calls.forms import form_of
from workers.text.tool_calls.reading import CallReader, Text


def tool(name, **properties):
    parameters = {"type": "object", "properties": properties}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


TOOLS = [tool("f", a={"type": "integer"}, s={"type": "string"}), tool("g")]
ARGUMENTS = '{"a": 1, "s": "}\\"{ </tool_call> \\\\"}'


def hermes(name, arguments, key="arguments"):
    return f'<tool_call>\n{{"name": "{name}", "{key}": {arguments}}}\n</tool_call>'


def read(form, *pieces, tools=TOOLS):
    """(text, [(name, arguments), ...]) of an answer that comes in these pieces."""
    reader, text, calls = CallReader(form, tools), "", []
    said = [item for piece in pieces for item in reader.push(piece)] + list(reader.flush())
    for item in said:
        if isinstance(item, Text):
            text += item.text
        elif isinstance(item, Call):
            calls.append((item.name, ""))
        else:
            assert isinstance(item, Arguments)
            calls[-1] = (calls[-1][0], calls[-1][1] + item.delta)
    return text, calls


XML = """<tool_call>
<function=f>
<parameter=a>
12
</parameter>
<parameter=s>
two
 lines "quoted" {"x"}
</parameter>
</function>
</tool_call>"""
READ_AS = {  # form: [(answer, text, calls)]
    "hermes": [
        (hermes("f", ARGUMENTS), "", [("f", ARGUMENTS)]),
        (f"Let me see.\n{hermes('f', '{}')}", "Let me see.\n", [("f", "{}")]),
        (f"{hermes('f', '{}')}\n{hermes('g', '{}')}\n", "", [("f", "{}"), ("g", "{}")]),
        (f"{hermes('f', '{}')}\nDone.", "\nDone.", [("f", "{}")]),
        ("1 < 2, <tool, <tool_call", "1 < 2, <tool, <tool_call", []),
        (hermes("unknown", "{}"), hermes("unknown", "{}"), []),
        ("<tool_call>\nno json\n</tool_call>", "<tool_call>\nno json\n</tool_call>", []),
        ('<tool_call>\n{"name": "f"', '<tool_call>\n{"name": "f"', []),
        (hermes("f", '{"a": 1')[:-14], "", [("f", '{"a": 1')]),
        ("", "", []),
    ],
    "xml": [
        (XML, "", [("f", '{"a": 12, "s": "two\\n lines \\"quoted\\" {\\"x\\"}"}')]),
        ("<tool_call>\n<function=g>\n</function>\n</tool_call>", "", [("g", "{}")]),
        (f"Well: {XML}\n{XML}", "Well: ", 2),
        ("<tool_call>\n<function=h>\n", "<tool_call>\n<function=h>\n", []),
        (XML[:60], "", [("f", '{"a": 12')]),
    ],
    "llama": [
        ('{"name": "f", "parameters": {"a": 1}}', "", [("f", '{"a": 1}')]),
        ('\n{"name": "f", "arguments": {}}; {"name": "g", "parameters": {}}', "", 2),
        ('{"answer": 5}', '{"answer": 5}', []),
        ("Plain text {", "Plain text {", []),
        ('{"name": "h", "parameters": {}}', '{"name": "h", "parameters": {}}', []),
        ('{"name": "f", "parameters": {}} trailing', "trailing", [("f", "{}")]),
    ],
}
CASES = [(form, *case) for form, cases in READ_AS.items() for case in cases]


@pytest.mark.parametrize(("form", "answer", "text", "calls"), CASES)
def test_an_answer_is_read_as(form, answer, text, calls):
    said, found = read(form, answer)
    assert (text, calls) == (said, len(found) if isinstance(calls, int) else found)


@pytest.mark.parametrize(("form", "answer", "text", "calls"), CASES)
def test_the_cuts_of_an_answer_change_nothing(form, answer, text, calls):
    assert read(form, answer) == read(form, *answer)


@given(
    text=st.text('<>/tool_cal{}"name:f,\\ \nargumens', max_size=60),
    form=st.sampled_from(list(READ_AS)),
)
@example(text="<tool_call><tool_call>", form="hermes")
def test_no_text_is_lost_where_there_is_no_call(text, form):
    said, calls = read(form, *text)
    assert calls or said == text


def test_arguments_come_before_the_call_is_complete():
    reader = CallReader("hermes", TOOLS)
    begun = list(reader.push('<tool_call>\n{"name": "f", "arguments": {"s": "lo'))
    assert begun == [Call("f"), Arguments('{"s": "lo')]
    assert list(reader.push("ng")) == [Arguments("ng")]


def test_arguments_that_were_read_are_json():
    for form, answer, _, calls in CASES:
        for _, arguments in read(form, answer)[1]:
            if calls and "</" in answer[-15:]:
                assert isinstance(json.loads(arguments), dict), (form, answer)


def thoughts(written_by, *pieces):
    reader = ThoughtReader(written_by)
    said = [item for piece in pieces for item in reader.push(piece)] + list(reader.flush())
    thought = "".join(item.text for item in said if isinstance(item, Thought))
    return thought, "".join(item for item in said if isinstance(item, str))


THOUGHTS = [
    ("template", "\nHm, </b> so.\n</think>\n\nYes.\n", "Hm, </b> so.", "Yes.\n"),
    ("template", "cut off in th", "cut off in th", ""),
    ("template", "</think>\n\nYes", "", "Yes"),
    ("model", "<think>\nHm.\n</think>\n\nYes", "Hm.", "Yes"),
    ("model", "\n<think>\n\n</think>\n\nYes", "", "Yes"),
    ("model", "Yes, <think> is a mark", "", "Yes, <think> is a mark"),
    ("model", "<thin", "", "<thin"),
    ("", "<think>Hm</think>", "", "<think>Hm</think>"),
]


@pytest.mark.parametrize(("written_by", "answer", "thought", "text"), THOUGHTS)
def test_thoughts_are_told_from_the_answer(written_by, answer, thought, text):
    assert (thought, text) == thoughts(written_by, answer)
    assert (thought, text) == thoughts(written_by, *answer)


@pytest.mark.parametrize(
    ("template", "form"),
    [
        (None, "hermes"),
        ("{{ messages }}", "hermes"),
        ("{% if tools %}<tool_call>{% endif %}", "hermes"),
        ("{% if tools %}<tool_call><function=x>{% endif %}", "xml"),
        ('{% if tools %}Environment: ipython {"name": .., "parameters": ..}{% endif %}', "llama"),
    ],
)
def test_the_form_is_seen_from_the_template(template, form):
    assert form == form_of(template)
