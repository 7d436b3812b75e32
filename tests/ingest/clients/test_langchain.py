"""langchain-openai: text, streams, tools, structured output, by chat and by responses."""

import asyncio
from typing import Literal

import pytest
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI
from pydantic import BaseModel

MODEL = "smollm2-135m"
ASK = "What is the weather in Paris?"
# strict: a small model would think of further arguments until its tokens are spent
ONE_CALL = {"tool_choice": "any", "parallel_tool_calls": False, "strict": True}


class Weather(BaseModel):
    """The weather of a city."""

    city: Literal["Paris", "London"]
    is_raining: bool


@tool
def get_weather(city: Literal["Paris", "London"]) -> str:
    """The weather of a city."""
    return f"It is sunny in {city}."


@pytest.fixture(scope="module", params=[False, True], ids=["chat", "responses"])
def model(request, base_url) -> ChatOpenAI:
    return ChatOpenAI(
        base_url=f"{base_url}/v1",
        api_key="none",
        model=MODEL,
        temperature=0,
        max_tokens=64,
        max_retries=0,
        use_responses_api=request.param,
    )


def test_a_text_and_its_stream_are_the_same(model):
    whole = model.invoke("Name a colour.")
    pieces = list(model.stream("Name a colour."))
    assert "".join(piece.text for piece in pieces) == whole.text != ""
    assert sum(bool(piece.text) for piece in pieces) > 3
    assert whole.usage_metadata["output_tokens"] > 0


@pytest.fixture(scope="module")
def loop():
    """One for all: the client's connections belong to it."""
    with asyncio.Runner() as runner:
        yield runner


def test_it_can_be_awaited(model, loop):
    answer = loop.run(model.ainvoke("Name a colour."))
    assert answer.text == model.invoke("Name a colour.").text


def test_a_tool_is_called_and_its_answer_taken_back(model):
    bound = model.bind_tools([get_weather], **ONE_CALL)
    message = bound.invoke(ASK)
    (call,) = message.tool_calls
    assert call["name"] == "get_weather" and call["args"]["city"] in ("Paris", "London")
    gave = ToolMessage(get_weather.invoke(call["args"]), tool_call_id=call["id"])
    answer = model.bind_tools([get_weather]).invoke([HumanMessage(ASK), message, gave])
    assert answer.usage_metadata["input_tokens"] > message.usage_metadata["input_tokens"]


def test_a_streamed_call_adds_up(model):
    bound = model.bind_tools([get_weather], **ONE_CALL)
    whole = None
    for piece in bound.stream(ASK):
        whole = piece if whole is None else whole + piece
    (call,) = whole.tool_calls
    assert call["name"] == "get_weather" and call["args"]["city"] in ("Paris", "London")


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_structured_output(model, method):
    parsed = model.with_structured_output(Weather, method=method).invoke(ASK)
    assert isinstance(parsed, Weather)


def test_completions(base_url):
    model = OpenAI(
        base_url=f"{base_url}/v1", api_key="none", model=MODEL, temperature=0, max_tokens=8
    )
    assert model.invoke("The capital of France is").startswith(" Paris")
    assert "".join(model.stream("The capital of France is")).startswith(" Paris")
