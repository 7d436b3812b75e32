"""Tools, JSON and thoughts as the official client sees them, whole and in a stream."""

import json

import openai
import pytest
from pydantic import BaseModel

from tests.ingest.stub_node import Play

HELLO = [{"role": "user", "content": "What is the weather in Paris?"}]
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER = {
    "type": "function",
    "function": {"name": "weather", "description": "Of a city.", "parameters": PARAMETERS},
}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'


def ask(door, messages=HELLO, **more):
    return door.openai.chat.completions.create(model="tiny", messages=messages, **more)


def test_a_call_is_answered_as_one(door, node):
    node.play = Play(pieces=("Let me look. ", *CALL))
    choice = ask(door, tools=[WEATHER]).choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "Let me look. "
    (call,) = choice.message.tool_calls
    assert (call.type, call.function.name) == ("function", "weather")
    assert json.loads(call.function.arguments) == {"city": "Paris"}


def test_a_call_is_streamed_name_first_then_its_arguments(door, node):
    node.play = Play(pieces=tuple(CALL))
    chunks = [c.choices[0] for c in ask(door, tools=[WEATHER], stream=True)]
    calls = [c.delta.tool_calls[0] for c in chunks if c.delta.tool_calls]
    assert (calls[0].index, calls[0].function.name) == (0, "weather")
    assert calls[0].id and not any(call.id for call in calls[1:])
    assert "".join(call.function.arguments for call in calls) == '{"city": "Paris"}'
    assert len(calls) > 5
    assert not any(c.delta.content for c in chunks)
    assert chunks[-1].finish_reason == "tool_calls"


def test_two_calls_have_two_ids(door, node):
    node.play = Play(pieces=(f"{CALL}\n{CALL}",))
    first, second = ask(door, tools=[WEATHER]).choices[0].message.tool_calls
    assert first.id != second.id


def test_without_tools_nothing_is_a_call(door, node):
    node.play = Play(pieces=(CALL,))
    assert ask(door).choices[0].message.content == CALL
    assert ask(door, tools=[WEATHER], tool_choice="none").choices[0].message.content == CALL
    assert not any(request.grammar for request in node.requests)


def test_the_model_is_told_of_the_tools(door, node, text):
    ask(door, tools=[WEATHER])
    told = b"".join(map(text.token_bytes, node.requests[0].token_ids)).decode()
    assert json.dumps(WEATHER) in told
    assert "<tool_call>" in node.requests[0].grammar


def test_a_call_and_its_result_are_told_to_the_model(door, node, text):
    node.play = Play(pieces=(CALL,))
    message = ask(door, tools=[WEATHER]).choices[0].message
    (call,) = message.tool_calls
    result = {"role": "tool", "tool_call_id": call.id, "content": "sunny"}
    ask(door, [*HELLO, message.model_dump(exclude_none=True), result], tools=[WEATHER])
    told = b"".join(map(text.token_bytes, node.requests[1].token_ids)).decode()
    assert CALL in told
    assert "<tool_response>\nsunny\n</tool_response>" in told


@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "weather"}}]
)
def test_a_call_may_be_required(door, node, choice):
    ask(door, tools=[WEATHER], tool_choice=choice, parallel_tool_calls=False)
    assert "start: (calls)" in node.requests[0].grammar
    assert "between" not in node.requests[0].grammar


class City(BaseModel):
    name: str
    people: int


def test_a_json_schema_is_what_the_clients_parse_helper_wants(door, node):
    node.play = Play(pieces=('{"name": "Paris", ', '"people": 2100000}'))
    answer = door.openai.chat.completions.parse(model="tiny", messages=HELLO, response_format=City)
    assert answer.choices[0].message.parsed == City(name="Paris", people=2100000)
    assert '"people"' in node.requests[0].grammar


def test_what_cannot_be_enforced_is_refused_by_name(door):
    schema = {"name": "n", "strict": True, "schema": {"not": {"type": "string"}}}
    with pytest.raises(openai.BadRequestError) as caught:
        ask(door, response_format={"type": "json_schema", "json_schema": schema})
    assert (caught.value.param, caught.value.code) == ("response_format", "unsupported")


def test_a_grammar_reaches_a_request_of_any_door(door, node):
    """The stream's fields are the same; the HTTP door's prompt goes on as token ids."""
    ask(door, response_format={"type": "json_object"})
    body = {"prompt": "x", "response_format": {"type": "json_object"}, "id": "mine"}
    assert door.http.post("/v1/jobs", json=body).status_code == 202
    door.http.get("/v1/jobs/mine/events")
    first, second = node.requests
    assert first.grammar == second.grammar != ""


def test_several_answers_are_several_choices(door, node):
    answer = ask(door, n=3, extra_body={"id": "three"}, seed=7)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert answer.usage.completion_tokens == 12
    assert answer.usage.prompt_tokens == len(node.requests[0].token_ids)
    asked = {(r.id, r.params.seed, r.params.choice) for r in node.requests}
    assert asked == {("three", 7, 0), ("three_1", 7, 1), ("three_2", 7, 2)}


def test_choices_without_a_seed_share_the_one_of_the_id(door, node):
    ask(door, extra_body={"id": "alone"})
    ask(door, n=2, extra_body={"id": "pair"})
    seeds = {request.id: request.params.seed for request in node.requests}
    assert seeds["pair"] == seeds["pair_1"] != seeds["alone"]


def test_streamed_choices_carry_their_index(door, node):
    chunks = list(ask(door, n=2, stream=True, stream_options={"include_usage": True}))
    said = {0: "", 1: ""}
    for chunk in chunks[:-1]:
        said[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert said == {0: " Paris, of course.", 1: " Paris, of course."}
    ends = [c.choices[0].index for c in chunks[:-1] if c.choices[0].finish_reason]
    assert sorted(ends) == [0, 1]
    assert chunks[-1].usage.completion_tokens == 8


def test_several_prompts_have_choices_of_their_own(door, node):
    answer = door.openai.completions.create(model="tiny", prompt=["a", "b"], n=2, echo=True)
    assert [c.index for c in answer.choices] == [0, 1, 2, 3]
    assert [c.text[0] for c in answer.choices] == ["a", "a", "b", "b"]
    assert answer.usage.prompt_tokens == 2 * len(node.requests[0].token_ids)


def test_prompts_may_be_token_ids(door, node):
    door.openai.completions.create(model="tiny", prompt=[[5, 6], [7]])
    assert {(5, 6), (7,)} == {request.token_ids for request in node.requests}


def test_choices_beyond_the_limit_are_refused_before_any_is_begun(door, node):
    with pytest.raises(openai.BadRequestError, match="at most 128"):
        door.openai.completions.create(model="tiny", prompt=["a"] * 65, n=2)
    assert node.requests == []


def test_a_choice_that_is_refused_takes_the_others_along(door, node, wait_until):
    node.play = Play(pause_after=0)
    with pytest.raises(openai.BadRequestError, match="must not be empty"):
        door.openai.completions.create(model="tiny", prompt=["a", "b", ""], extra_body={"id": "x"})
    for name in ("x", "x_1"):
        wait_until(lambda name=name: door.desk.store.job(name)["status"] == "cancelled")


def test_detokenize_is_tokenize_backwards(door):
    tokens = door.http.post("/v1/tokenize", json={"prompt": "Grüße, 世界"}).json()["tokens"]
    back = door.http.post("/v1/detokenize", json={"tokens": tokens}).json()
    assert back == {"prompt": "Grüße, 世界"}
    refused = door.http.post("/v1/detokenize", json={"tokens": [1, -1]})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "tokens[1]")


def test_tools_count_in_tokenize(door):
    plain = door.http.post("/v1/tokenize", json={"messages": HELLO}).json()["count"]
    told = door.http.post("/v1/tokenize", json={"messages": HELLO, "tools": [WEATHER]}).json()
    assert told["count"] > plain
