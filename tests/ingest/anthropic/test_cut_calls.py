"""A call of a tool that max_tokens cut, as Anthropic's own client sees it."""

import anthropic
import pytest

from tests.ingest.stub_node import Play
from workers.wire import EndEvent

ASK = [{"role": "user", "content": "What is the weather?"}]
PROPERTIES = {"city": {"type": "string"}, "days": {"type": "array", "items": {"type": "integer"}}}
TOOL = {"name": "get_weather", "input_schema": {"type": "object", "properties": PROPERTIES}}
BEFORE = 'Yes.<tool_call>\n{"name": "get_weather", "arguments": '
ARGUMENTS = '{"city": "Pa\\"ris", "days": [3, 40]}'
CUTS = {
    '{"ci': {},
    '{"city": "Pa\\': {},
    '{"city": "Pa\\"ris"': {"city": 'Pa"ris'},
    '{"city": "Pa\\"ris", "days": [3, ': {"city": 'Pa"ris', "days": [3]},
    ARGUMENTS: {"city": 'Pa"ris', "days": [3, 40]},
}


@pytest.fixture
def client(door):
    with anthropic.Anthropic(base_url=door.base, api_key="none", max_retries=0) as client:
        yield client


@pytest.mark.parametrize("said", CUTS)
def test_a_cut_call_is_the_same_whole_and_streamed_and_can_be_answered(client, node, said):
    """Whole, it had an argument `arguments`, which no tool knows."""
    cut = EndEvent(status="finished", finish_reason="length")
    node.play = Play(pieces=(BEFORE, *said), end=cut)
    asked = {"model": "tiny", "messages": ASK, "tools": [TOOL], "max_tokens": 64}
    whole = client.messages.create(**asked)
    with client.messages.stream(**asked) as stream:
        told = stream.get_final_message()
    _, use = whole.content
    assert (use.name, use.input, whole.stop_reason) == ("get_weather", CUTS[said], "max_tokens")
    assert (told.content[1].input, told.stop_reason) == (CUTS[said], "max_tokens")
    gave = {"type": "tool_result", "tool_use_id": use.id, "content": "cut", "is_error": True}
    answered = [
        {"role": "assistant", "content": whole.content},
        {"role": "user", "content": [gave]},
    ]
    assert client.messages.create(**{**asked, "messages": [*ASK, *answered]}).content


def test_a_call_that_is_cut_before_its_name_is_text(client, node):
    node.play = Play(
        pieces=tuple(BEFORE[:30]), end=EndEvent(status="finished", finish_reason="length")
    )
    message = client.messages.create(model="tiny", messages=ASK, tools=[TOOL], max_tokens=64)
    assert [block.text for block in message.content] == [BEFORE[:30]]
