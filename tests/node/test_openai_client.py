"""OpenAI's own client against a running node: tools, schemas, responses, batches; streamed or not.

The model is small, so what it is asked for leaves it little choice; that it keeps to the form is
the node's affair.
"""

import json
from typing import Literal

import openai as package
import pytest
from pydantic import BaseModel

from tests.node.running_node import wait_for

MODEL = "smollm2-135m"
ASK = [{"role": "user", "content": "What is the weather in Paris?"}]
CITY = {"type": "string", "enum": ["Paris", "London"]}
PARAMETERS = {
    "type": "object",
    "properties": {"city": CITY},
    "required": ["city"],
    "additionalProperties": False,
}
FUNCTION = {"name": "get_weather", "description": "The weather of a city", "parameters": PARAMETERS}
CHAT_TOOL = {"type": "function", "function": FUNCTION}
TOOL = {"type": "function", "strict": True, **FUNCTION}
GREEDY = {"model": MODEL, "temperature": 0}
ONE_CALL = {"parallel_tool_calls": False, "tool_choice": "required"}


class Weather(BaseModel):
    """What is asked for in JSON."""

    city: Literal["Paris", "London"]
    is_raining: bool


def is_city(arguments: str) -> bool:
    return json.loads(arguments) in ({"city": "Paris"}, {"city": "London"})


@pytest.fixture(scope="module")
def called(openai):
    """An answer that calls the tool."""
    return openai.chat.completions.create(
        **GREEDY, **ONE_CALL, messages=ASK, tools=[CHAT_TOOL], max_tokens=64
    )


def test_a_tool_is_called(called):
    choice = called.choices[0]
    (call,) = choice.message.tool_calls
    assert choice.finish_reason == "tool_calls"
    assert call.function.name == "get_weather" and is_city(call.function.arguments)


def test_a_streamed_call_adds_up_to_the_whole_one(openai, called):
    asked = {**GREEDY, "messages": ASK, "tools": [CHAT_TOOL], "max_tokens": 64}
    named = {"type": "function", "function": {"name": "get_weather"}}
    one = {**ONE_CALL, "tool_choice": named}
    with openai.chat.completions.stream(**asked, **one) as stream:
        deltas = [e.arguments_delta for e in stream if e.type.endswith("arguments.delta")]
        (call,) = stream.get_final_completion().choices[0].message.tool_calls
    assert "".join(deltas) == call.function.arguments
    assert call.function.arguments == called.choices[0].message.tool_calls[0].function.arguments


def test_what_the_tool_gave_is_part_of_the_conversation(openai, called):
    message = called.choices[0].message
    gave = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "It is sunny."}
    told = [*ASK, message.model_dump(exclude_none=True), gave]
    answer = openai.chat.completions.create(
        **GREEDY, messages=told, tools=[CHAT_TOOL], max_tokens=4
    )
    assert answer.usage.completion_tokens > 0
    assert answer.usage.prompt_tokens > called.usage.prompt_tokens


def test_json_of_a_schema(openai):
    asked = {**GREEDY, "messages": ASK, "max_tokens": 64}
    parsed = openai.chat.completions.parse(**asked, response_format=Weather)
    assert isinstance(parsed.choices[0].message.parsed, Weather)
    with openai.chat.completions.stream(**asked, response_format=Weather) as stream:
        told = stream.get_final_completion().choices[0].message.parsed
    assert told == parsed.choices[0].message.parsed


def test_any_json_object(openai):
    answer = openai.chat.completions.create(
        **GREEDY,
        messages=[{"role": "user", "content": "Answer in JSON: a city"}],
        response_format={"type": "json_object"},
        max_tokens=24,
    )
    assert answer.choices[0].message.content.lstrip().startswith("{")


def test_a_response_calls_a_tool_and_goes_on_with_what_it_gave(openai):
    asked = {**GREEDY, "tools": [TOOL], "max_output_tokens": 64}
    first = openai.responses.create(**asked, **ONE_CALL, input=ASK)
    (call,) = [item for item in first.output if item.type == "function_call"]
    assert call.name == "get_weather" and is_city(call.arguments)
    gave = {"type": "function_call_output", "call_id": call.call_id, "output": "It is sunny."}
    second = openai.responses.create(
        **{**asked, "max_output_tokens": 8},
        input=[gave],
        tool_choice="none",
        previous_response_id=first.id,
    )
    assert second.output_text
    assert second.usage.input_tokens > first.usage.input_tokens
    assert second.usage.input_tokens_details.cached_tokens > 0
    again = openai.responses.retrieve(first.id)
    assert again.output == first.output


def test_a_streamed_response_that_calls_a_tool(openai):
    asked = {**GREEDY, "tools": [TOOL], "max_output_tokens": 64, "store": False}
    events = list(openai.responses.create(**asked, **ONE_CALL, input=ASK, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    deltas = [e.delta for e in events if e.type == "response.function_call_arguments.delta"]
    (call,) = events[-1].response.output
    assert "".join(deltas) == call.arguments and is_city(call.arguments)


def test_a_response_in_json_of_a_schema(openai):
    asked = {**GREEDY, "input": ASK, "max_output_tokens": 64}
    parsed = openai.responses.parse(**asked, text_format=Weather)
    assert isinstance(parsed.output_parsed, Weather)


def test_a_conversation_of_responses_is_not_computed_again(node, openai):
    first = openai.responses.create(**GREEDY, input="Name a colour.", max_output_tokens=16)
    asked = {**GREEDY, "input": "Another one.", "max_output_tokens": 8}
    second = openai.responses.create(**asked, previous_response_id=first.id)
    branch = openai.responses.create(**asked, previous_response_id=first.id)
    assert second.output_text == branch.output_text
    said = first.usage.input_tokens + first.usage.output_tokens
    assert second.usage.input_tokens_details.cached_tokens >= said - 2
    sessions = [response.lockstep["session_id"] for response in (first, second, branch)]
    assert sessions == [first.id, first.id, branch.id]


def test_a_batch_runs_and_goes_on_after_the_api_process_was_killed(node, openai):
    body = {**GREEDY, "messages": ASK, "max_tokens": 16}
    lines = [
        {"custom_id": f"c{i}", "method": "POST", "url": "/v1/chat/completions", "body": body}
        for i in range(24)
    ]
    raw = "\n".join(json.dumps(line) for line in lines).encode()
    file = openai.files.create(file=("in.jsonl", raw), purpose="batch")
    batch = openai.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="1h"
    )

    def counts():
        try:
            return openai.batches.retrieve(batch.id).request_counts
        except package.APIConnectionError:
            return None

    wait_for(lambda: (told := counts()) and told.completed, "a first row")
    node.kill_program("api")
    wait_for(lambda: (told := counts()) and told.completed == 24, "all rows")
    done = wait_for(
        lambda: (b := openai.batches.retrieve(batch.id)).status == "completed" and b, "its end"
    )
    rows = [json.loads(row) for row in openai.files.content(done.output_file_id).text.splitlines()]
    assert sorted(row["custom_id"] for row in rows) == sorted(line["custom_id"] for line in lines)
    texts = {row["response"]["body"]["choices"][0]["message"]["content"] for row in rows}
    assert len(texts) == 1
