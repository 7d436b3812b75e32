"""Whatever pieces come, the events of a message add up to the message; blocks become messages."""

import json

import pytest
from hypothesis import given

from ingest.anthropic.asked import choice_of, messages_of, tool_of
from ingest.anthropic.shape import Output, input_of, stop_sequence_in
from ingest.turn import TextPiece, ToolCallPiece
from tests.ingest.responses.test_shape import REQUEST, answers
from workers.wire import TokenEvent

GROWING = {"text": "text", "thinking": "thinking", "tool_use": "partial_json"}


@given(answers())
def test_the_events_add_up_to_the_message(pieces):
    output = Output(REQUEST)
    events = [json.loads(json.dumps(e)) for p in pieces for e in output.piece(p)]
    blocks, text = [], None
    for kind, fields in events:
        if kind == "content_block_start":
            assert text is None and fields["index"] == len(blocks)
            blocks.append(fields["content_block"])
            text = ""
        elif kind == "content_block_delta":
            assert fields["index"] == len(blocks) - 1
            text += fields["delta"][GROWING[blocks[-1]["type"]]]
        elif kind == "content_block_stop":
            name = blocks[-1]["type"]
            blocks[-1]["input" if name == "tool_use" else name] = (
                input_of(text) if name == "tool_use" else text
            )
            text = None
    assert text is None
    assert blocks == output.message["content"]
    assert [kind for kind, _ in events[-2:]] == ["message_delta", "message_stop"]
    said = "".join(block["text"] for block in blocks if block["type"] == "text")
    words = "".join(p.text for p in pieces if isinstance(p, TextPiece))
    assert "".join(said.split()) == "".join(words.split())
    calls = [block["id"] for block in blocks if block["type"] == "tool_use"]
    assert calls == [p.id for p in pieces if isinstance(p, ToolCallPiece) and p.id]


def test_calls_and_what_they_gave_become_messages():
    use = {"type": "tool_use", "id": "t1", "name": "f", "input": {"a": 1}}
    gave = {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "7"}]}
    thought = {"type": "thinking", "thinking": "hm", "signature": ""}
    text = {"type": "text", "text": "I ask."}
    told = messages_of(
        [
            {"role": "user", "content": "?"},
            {"role": "assistant", "content": [thought, text, use]},
            {"role": "user", "content": [gave, {**text, "text": "Go on."}]},
        ]
    )
    function = {"name": "f", "arguments": '{"a": 1}'}
    calls = [{"id": "t1", "type": "function", "function": function}]
    assert told == [
        {"role": "user", "content": "?"},
        {"role": "assistant", "content": "I ask.", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "t1", "content": "7"},
        {"role": "user", "content": "Go on."},
    ]


def test_tools_and_their_choice_as_the_chat_api_has_them():
    schema = {"type": "object"}
    tool = tool_of({"name": "f", "description": "d", "input_schema": schema}, "tools[0]")
    function = {"name": "f", "parameters": schema, "description": "d"}
    assert tool == {"type": "function", "function": function}
    assert choice_of({"type": "any"}) == {"tool_choice": "required"}
    named = {"type": "function", "function": {"name": "f"}}
    expected = {"tool_choice": named, "parallel_tool_calls": False}
    given_choice = {"type": "tool", "name": "f", "disable_parallel_tool_use": True}
    assert choice_of(given_choice) == expected


class Letters:
    """A text model of which a token is a byte."""

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([token_id])


@pytest.mark.parametrize(
    ("said", "stops", "expected"),
    [
        ("one END", ["END"], "END"),
        ("one", ["END"], None),
        ("a;b.", [".", ";"], ";"),
        ("", [], None),
    ],
)
def test_the_stop_string_that_ended_an_answer_is_found(said, stops, expected):
    tokens = [
        TokenEvent(index=i, token_id=byte, text="", digest="")
        for i, byte in enumerate(said.encode())
    ]
    assert stop_sequence_in(tokens, stops, Letters()) == expected
