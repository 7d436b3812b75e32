"""Items of a conversation become its messages, calls of tools with what they gave."""

from ingest.responses.asked import choice_of, format_of, tool_of
from ingest.responses.items import messages_of

CALL = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"a": 1}'}
OTHER = {**CALL, "call_id": "c2"}
GIVEN = {"type": "function_call_output", "call_id": "c1", "output": "7"}


def as_call(item: dict) -> dict:
    function = {"name": item["name"], "arguments": item["arguments"]}
    return {"id": item["call_id"], "type": "function", "function": function}


def test_calls_that_follow_each_other_are_one_message_with_what_was_said_before():
    said = {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "I"}],
    }
    thought = {"type": "reasoning", "summary": []}
    (message,) = messages_of([thought, said, CALL, OTHER])
    expected = {"role": "assistant", "content": "I", "tool_calls": [as_call(CALL), as_call(OTHER)]}
    assert message == expected


def test_a_tools_answer_names_its_call():
    parts = [{"type": "input_text", "text": "7"}]
    for output in ("7", parts):
        messages = messages_of(
            [CALL, {**GIVEN, "output": output}, {"role": "user", "content": "?"}]
        )
        assert [m["role"] for m in messages] == ["assistant", "tool", "user"]
        assert messages[1] == {"role": "tool", "tool_call_id": "c1", "content": "7"}


def test_a_call_after_a_tools_answer_is_a_message_of_its_own():
    roles = [m["role"] for m in messages_of([CALL, GIVEN, OTHER])]
    assert roles == ["assistant", "tool", "assistant"]


def test_tools_and_formats_as_the_chat_api_has_them():
    schema = {"type": "object"}
    flat = {"type": "function", "name": "f", "parameters": schema, "strict": True}
    nested = {"name": "f", "parameters": schema, "strict": True}
    assert tool_of(flat, "tools[0]") == {"type": "function", "function": nested}
    assert choice_of({"type": "function", "name": "f"})["function"] == {"name": "f"}
    wanted = {"type": "json_schema", "name": "x", "schema": schema}
    named = {"name": "x", "schema": schema}
    assert format_of({"format": wanted}) == {"type": "json_schema", "json_schema": named}
    assert format_of({"format": {"type": "text"}}) is format_of({}) is None
