"""Anthropic's own client against a running node: text, tools, schemas; streamed or not."""

import anthropic
import pytest

from tests.node.test_openai_client import CITY, PARAMETERS

MODEL = "smollm2-135m"
ASK = [{"role": "user", "content": "What is the weather in Paris?"}]
TOOL = {
    "name": "get_weather",
    "description": "The weather of a city",
    "input_schema": PARAMETERS,
}
COLD = {"extra_body": {"temperature": 0}}  # newer clients have no argument for it
GREEDY = {"model": MODEL, "messages": ASK, "max_tokens": 64, **COLD}
ANY = {"type": "any", "disable_parallel_tool_use": True}
CITIES = [{"city": name} for name in CITY["enum"]]


@pytest.fixture(scope="module")
def client(node):
    with anthropic.Anthropic(base_url=node.url, api_key="none", max_retries=0) as client:
        yield client


def test_a_text_and_its_stream_are_the_same(client):
    asked = {**GREEDY, "max_tokens": 16, "system": "Be brief."}
    whole = client.messages.create(**asked)
    with client.messages.stream(**asked) as stream:
        pieces = list(stream.text_stream)
        told = stream.get_final_message()
    assert "".join(pieces) == whole.content[0].text == told.content[0].text
    assert len(pieces) > 5 and told.usage.output_tokens == whole.usage.output_tokens
    assert whole.stop_reason == told.stop_reason


def test_the_stop_sequence_is_named(client):
    count = [{"role": "user", "content": "Count: one, two, three, four, five"}]
    asked = {**GREEDY, "messages": count}
    free = client.messages.create(**asked).content[0].text
    stop = free.split()[2]
    message = client.messages.create(**asked, stop_sequences=["never-said", stop])
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", stop)
    assert free.startswith(message.content[0].text) and stop not in message.content[0].text


def test_a_tool_is_used_and_what_it_gave_is_part_of_the_conversation(client):
    choice = {"type": "tool", "name": "get_weather", "disable_parallel_tool_use": True}
    message = client.messages.create(**GREEDY, tools=[TOOL], tool_choice=choice)
    (use,) = message.content
    assert message.stop_reason == "tool_use"
    assert (use.type, use.name) == ("tool_use", "get_weather") and use.input in CITIES
    gave = {"type": "tool_result", "tool_use_id": use.id, "content": "It is sunny."}
    told = [*ASK, {"role": "assistant", "content": message.content}]
    answer = client.messages.create(
        **{**GREEDY, "messages": [*told, {"role": "user", "content": [gave]}], "max_tokens": 8},
        tools=[TOOL],
        tool_choice={"type": "none"},
    )
    assert answer.content[0].text and answer.stop_reason in ("end_turn", "max_tokens")


def test_a_streamed_use_adds_up_to_the_whole_one(client):
    asked = {**GREEDY, "tools": [TOOL], "tool_choice": ANY}
    with client.messages.stream(**asked) as stream:
        deltas = [event.partial_json for event in stream if event.type == "input_json"]
        (use,) = stream.get_final_message().content
    assert deltas and use.input in CITIES
    (whole,) = client.messages.create(**asked).content
    assert whole.input == use.input


def test_json_of_a_schema(client):
    config = {"format": {"type": "json_schema", "schema": PARAMETERS}}
    message = client.messages.create(**GREEDY, output_config=config)
    assert message.content[0].text.replace(" ", "") in ('{"city":"Paris"}', '{"city":"London"}')


def test_an_error_is_anthropics(client):
    with pytest.raises(anthropic.BadRequestError, match="temperature"):
        client.messages.create(**{**GREEDY, "extra_body": {"temperature": 9}})
    with pytest.raises(anthropic.NotFoundError):
        client.messages.create(**{**GREEDY, "model": "other"})
