"""litellm: the same node as an OpenAI endpoint and as an Anthropic one."""

import asyncio
import json
import os

import pytest

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # it asks nobody about prices
import litellm

MODEL = "smollm2-135m"
ASK = [{"role": "user", "content": "What is the weather in Paris?"}]
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Paris", "London"]}},
    "required": ["city"],
    "additionalProperties": False,
}
FUNCTION = {"name": "get_weather", "description": "Weather", "parameters": PARAMETERS}
TOOL = {"type": "function", "function": FUNCTION}
CITIES = [{"city": "Paris"}, {"city": "London"}]


@pytest.fixture(scope="module", params=["openai", "anthropic"])
def asked(request, base_url) -> dict:
    """What every call says: whose API, and where."""
    base = f"{base_url}/v1" if request.param == "openai" else base_url
    shared = {"api_base": base, "api_key": "none", "num_retries": 0, "temperature": 0}
    return {"model": f"{request.param}/{MODEL}", "max_tokens": 48, **shared}


def test_a_text_and_its_stream_are_the_same(asked):
    whole = litellm.completion(**asked, messages=ASK)
    pieces = [
        chunk.choices[0].delta.content or ""
        for chunk in litellm.completion(**asked, messages=ASK, stream=True)
    ]
    assert "".join(pieces) == whole.choices[0].message.content != ""
    assert sum(map(bool, pieces)) > 3
    assert whole.usage.completion_tokens > 0


def test_it_can_be_awaited(asked):
    answer = asyncio.run(litellm.acompletion(**asked, messages=ASK))
    assert answer.choices[0].message.content


def test_a_tool_is_called(asked):
    one = {"tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False}
    message = litellm.completion(**asked, messages=ASK, **one).choices[0].message
    (call,) = message.tool_calls
    assert call.function.name == "get_weather"
    assert json.loads(call.function.arguments) in CITIES
    gave = {"role": "tool", "tool_call_id": call.id, "content": "It is sunny."}
    told = [*ASK, message.model_dump(exclude_none=True), gave]
    answer = litellm.completion(**asked, messages=told, tools=[TOOL])
    assert answer.choices[0].message


def test_a_streamed_call_adds_up(asked):
    one = {"tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False}
    chunks = list(litellm.completion(**asked, messages=ASK, **one, stream=True))
    (call,) = litellm.stream_chunk_builder(chunks).choices[0].message.tool_calls
    assert json.loads(call.function.arguments) in CITIES


def test_json_of_a_schema(asked):
    schema = {"name": "weather", "schema": PARAMETERS, "strict": True}
    wanted = {"type": "json_schema", "json_schema": schema}
    answer = litellm.completion(**asked, messages=ASK, response_format=wanted)
    assert json.loads(answer.choices[0].message.content) in CITIES


def test_responses(base_url):
    answer = litellm.responses(
        model=f"openai/{MODEL}",
        input="Name a colour.",
        api_base=f"{base_url}/v1",
        api_key="none",
        temperature=0,
        max_output_tokens=8,
    )
    assert answer.output[0].content[0].text
