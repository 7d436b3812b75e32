"""Whatever pieces come, the events of a response add up to the response."""

import json

from hypothesis import given
from hypothesis import strategies as st

from ingest.responses.shape import Output, head_of
from ingest.turn import EndPiece, ReasoningPiece, TextPiece, ToolCallPiece
from workers.wire import EndEvent, Request, SamplingParams, Usage

REQUEST = Request(
    id="resp_1", model="tiny", token_ids=(1,), arrival_ms=5000, params=SamplingParams(max_tokens=9)
)


@st.composite
def answers(draw) -> list:
    """Pieces as a turn gives them."""
    pieces, calls = [], 0
    for kind in draw(st.lists(st.sampled_from("tttrcc"), max_size=6)):
        words = draw(st.lists(st.text(max_size=3), min_size=1, max_size=3))
        if kind == "t":
            pieces += [TextPiece(word) for word in words if word]
        elif kind == "r":
            pieces += [ReasoningPiece(word) for word in words]
        else:
            pieces.append(ToolCallPiece(calls, f"call_{calls}", "f", ""))
            pieces += [ToolCallPiece(calls, "", "", word) for word in words]
            calls += 1
    reason = draw(st.sampled_from(["stop", "length", "tool_calls"]))
    usage = Usage(prompt_tokens=3, output_tokens=2)
    end = EndEvent(status="finished", finish_reason=reason, usage=usage)
    return [*pieces, EndPiece(reason, usage, end)]


def told(pieces) -> list[dict]:
    """The events as they are sent: encoded one by one."""
    output = Output(head_of(REQUEST, "resp_1", {}), REQUEST, None)
    sent = []
    for kind, fields in output.begin():
        sent.append(json.loads(json.dumps({"type": kind, **fields})))
    for piece in pieces:
        for kind, fields in output.piece(piece):
            sent.append(json.loads(json.dumps({"type": kind, **fields})))
    return sent


@given(answers())
def test_the_events_add_up_to_the_response(pieces):
    items, open_item = [], None
    for event in told(pieces):
        what = event["type"].rpartition(".")[2]
        if event["type"] == "output_item.added":
            assert open_item is None and event["output_index"] == len(items)
            open_item = {"id": event["item"]["id"], "text": ""}
        elif what == "delta":
            assert event["item_id"] == open_item["id"]
            open_item["text"] += event["delta"]
        elif event["type"] == "output_item.done":
            assert event["item"]["id"] == open_item["id"]
            item = event["item"]
            parts = item.get("content")
            assert open_item["text"] == (parts[0]["text"] if parts else item["arguments"])
            items.append(item)
            open_item = None
    assert open_item is None
    assert event["response"]["output"] == items != []
    assert len({item["id"] for item in items}) == len(items)


@given(answers())
def test_nothing_that_was_said_is_missing(pieces):
    output = told(pieces)[-1]["response"]["output"]
    calls = [item for item in output if item["type"] == "function_call"]
    for index, call in enumerate(calls):
        deltas = [p for p in pieces if isinstance(p, ToolCallPiece) and p.index == index]
        assert call["arguments"] == "".join(p.arguments_delta for p in deltas)
        assert (call["call_id"], call["name"]) == (f"call_{index}", "f")
    said = [item["content"][0]["text"] for item in output if item["type"] == "message"]
    words = "".join(p.text for p in pieces if isinstance(p, TextPiece))
    assert "".join("".join(said).split()) == "".join(words.split())


class Letters:
    """A text model in which token 65 is an A."""

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([token_id])


def test_tokens_that_say_nothing_cut_neither_a_call_nor_a_thought():
    """Log probabilities come with each token, also with those of marks and of arguments."""
    silent = TextPiece("", (((66, -1.0),),))
    pieces = [
        *(silent, ReasoningPiece("Hm"), silent, ReasoningPiece("m."), silent),
        *(ToolCallPiece(0, "call_0", "f", ""), silent, ToolCallPiece(0, "", "", "{}"), silent),
    ]
    output = Output(head_of(REQUEST, "resp_1", {}), REQUEST, Letters())
    for piece in pieces:
        list(output.piece(piece))
    kinds = [item["type"] for item in output.response["output"]]
    assert kinds == ["reasoning", "function_call"]


def test_log_probabilities_of_what_is_told_later_come_with_it():
    """A token may hold half of a letter: it gives no text yet."""
    output = Output(head_of(REQUEST, "resp_1", {}), REQUEST, Letters())
    pieces = [TextPiece("", (((66, -1.0),),)), TextPiece("\n"), TextPiece("A", (((65, -2.0),),))]
    said = [event for piece in pieces for event in output.piece(piece)]
    (delta,) = [fields for kind, fields in said if kind == "output_text.delta"]
    assert delta["delta"] == "\nA"
    assert [named["token"] for named in delta["logprobs"]] == ["B", "A"]
