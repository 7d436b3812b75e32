"""Messages as Anthropic's client sees them: whole, streamed, refused, counted."""

import anthropic
import pytest

from tests.ingest.stub_node import Play
from workers.wire import EndEvent

TEXT = " Paris, of course."
HELLO = [{"role": "user", "content": "What is the capital?"}]


@pytest.fixture
def client(door):
    with anthropic.Anthropic(base_url=door.base, api_key="none", max_retries=0) as client:
        yield client


def ask(client, messages=HELLO, max_tokens=64, **more):
    return client.messages.create(model="tiny", messages=messages, max_tokens=max_tokens, **more)


def test_a_text_is_answered(client, node):
    message = ask(client, system=[{"type": "text", "text": "Be brief."}], max_tokens=4)
    assert [block.text for block in message.content] == [TEXT]
    assert (message.stop_reason, message.stop_sequence) == ("end_turn", None)
    assert message.usage.output_tokens == 4 and message.usage.input_tokens > 3
    assert node.requests[0].params.max_tokens == 4


def test_an_answer_that_is_cut_says_so(client, node):
    node.play = Play(end=EndEvent(status="finished", finish_reason="length"))
    assert ask(client).stop_reason == "max_tokens"


def test_events_come_in_order(client, node):
    events = list(ask(client, stream=True))
    kinds = [event.type for event in events]
    deltas = ["content_block_delta"] * 4
    head, tail = ["message_start", "content_block_start"], ["content_block_stop", "message_delta"]
    assert kinds == [*head, *deltas, *tail, "message_stop"]
    assert "".join(e.delta.text for e in events if e.type == "content_block_delta") == TEXT
    assert events[0].message.usage.input_tokens > 3
    assert events[-2].delta.stop_reason == "end_turn" and events[-2].usage.output_tokens == 4


def test_the_clients_own_accumulation_agrees_with_the_whole(client, node):
    with client.messages.stream(model="tiny", messages=HELLO, max_tokens=9) as stream:
        told = stream.get_final_message()
    whole = ask(client, max_tokens=9)
    assert [block.text for block in told.content] == [block.text for block in whole.content]
    assert (told.stop_reason, told.usage) == (whole.stop_reason, whole.usage)


def test_one_that_fails_is_an_error_and_the_last_event(client, node):
    node.play = Play(end=EndEvent(status="failed", code="numeric_error", error="not finite"))
    with pytest.raises(anthropic.InternalServerError, match="not finite"):
        ask(client)
    with pytest.raises(anthropic.APIStatusError, match="not finite"):
        list(ask(client, stream=True))


def test_tokens_are_counted_as_the_request_would_have_them(client, node):
    asked = {"messages": HELLO, "system": "Be brief."}
    counted = client.messages.count_tokens(model="tiny", **asked).input_tokens
    assert counted == ask(client, **asked).usage.input_tokens


def test_our_own_fields_count_here_too(client, node):
    message = ask(client, extra_body={"sla": "realtime", "seed": 7, "session_id": "s"})
    assert (node.requests[0].sla, node.requests[0].params.seed) == ("realtime", 7)
    assert node.requests[0].session_id == "s" and message.lockstep["sla"] == "realtime"


IMAGE = [{"role": "user", "content": [{"type": "image", "source": {}}]}]
WRONG = {
    "max_tokens": {"max_tokens": None},
    "temperature": {"temperature": 9},
    "stop_sequences": {"stop_sequences": [7]},
    "messages": {"messages": []},
    "messages[0].role": {"messages": [{"role": "king", "content": ""}]},
    "messages[0].content": {"messages": [{"role": "user", "content": 7}]},
    "messages[0].content[0].type": {"messages": IMAGE},
    "messages[1].role": {"messages": [*HELLO, {"role": "assistant", "content": "I"}]},
    "system": {"system": 7},
    "tools[0].type": {"tools": [{"type": "bash_20250124", "name": "bash"}]},
    "tool_choice.type": {"tools": [{"name": "f"}], "tool_choice": {"type": "some"}},
    "output_config.format": {"output_config": {"format": {"type": "xml"}}},
    "container": {"container": "c"},
    "stream": {"stream": 1},
}


@pytest.mark.parametrize("field", WRONG)
def test_a_wrong_field_is_refused_by_its_name_in_anthropics_shape(door, field):
    body = {"model": "tiny", "messages": HELLO, "max_tokens": 9, **WRONG[field]}
    response = door.http.post("/v1/messages", json=body)
    assert response.status_code == 400, response.text
    told = response.json()
    assert told["type"] == "error" and told["error"]["type"] == "invalid_request_error"
    assert told["error"]["message"].startswith(field)


def test_another_model_is_not_found(client, door):
    with pytest.raises(anthropic.NotFoundError, match="model"):
        client.messages.create(model="other", messages=HELLO, max_tokens=9)
