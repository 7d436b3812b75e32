"""The official openai client gets what it expects, whole and in a stream."""

import openai
import pytest

from tests.ingest.stub_node import Play
from workers.wire import EndEvent

HELLO = [{"role": "user", "content": "What is the capital of France?"}]
TEXT = " Paris, of course."


def chat(door, **more):
    return door.openai.chat.completions.create(model="tiny", messages=HELLO, **more)


def test_a_chat_answers_with_text_reason_and_usage(door, node):
    answer = chat(door)
    assert answer.choices[0].message.content == TEXT
    assert (answer.choices[0].message.role, answer.choices[0].finish_reason) == (
        "assistant",
        "stop",
    )
    assert answer.usage.completion_tokens == 4
    assert len(node.requests[0].token_ids) == answer.usage.prompt_tokens
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 4


def test_an_answer_carries_id_digest_and_times(door, node):
    extra = chat(door, extra_body={"id": "mine", "sla": "realtime"}).model_extra["lockstep"]
    expected = {"ttft_ms": 12.5, "tpot_ms": 2.25, "queue_ms": 1.5, "digest": "00000000000000ff"}
    assert {"id": "mine", "sla": "realtime", **expected} == extra


def test_a_completion_answers(door, node):
    answer = door.openai.completions.create(model="tiny", prompt="The capital of France is")
    assert answer.choices[0].text == TEXT
    assert answer.object == "text_completion"
    assert node.requests[0].params.max_tokens == 16


def test_a_chat_streams_role_pieces_reason_and_usage(door, node):
    chunks = list(chat(door, stream=True, stream_options={"include_usage": True}))
    assert {"chat.completion.chunk"} == {chunk.object for chunk in chunks}
    assert len({chunk.id for chunk in chunks}) == 1
    assert chunks[0].choices[0].delta.role == "assistant"
    pieces = [
        c.choices[0].delta.content for c in chunks if c.choices and c.choices[0].delta.content
    ]
    assert pieces == [" Paris", ", of", " course", "."]
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1:] == ["stop"]
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == 4
    assert {None} == {chunk.usage for chunk in chunks[:-1]}


def test_a_stream_without_include_usage_has_none(door, node):
    chunks = list(chat(door, stream=True))
    assert all(chunk.choices and chunk.usage is None for chunk in chunks)
    assert chunks[-1].model_extra["lockstep"]["digest"] == "00000000000000ff"


def test_a_completion_streams(door, node):
    chunks = list(door.openai.completions.create(model="tiny", prompt="x", stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == TEXT
    assert chunks[-1].choices[0].finish_reason == "stop"


def test_a_stream_ends_with_done(door, node):
    body = {"messages": HELLO, "stream": True}
    response = door.http.post("/v1/chat/completions", json=body)
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.text.endswith("data: [DONE]\n\n")


def test_tokens_arrive_before_the_answer_is_complete(door, node):
    node.play = Play(pause_after=2)
    seen = []
    for chunk in chat(door, stream=True):
        seen.append(chunk.choices[0].delta.content)
        if seen[-1] == ", of":  # the stub waits until we have seen its second token
            node.go.set()
    assert "".join(piece or "" for piece in seen) == TEXT


def test_held_back_text_gives_no_empty_chunk(door, node):
    end = EndEvent(status="finished", finish_reason="length", text="!")
    node.play = Play(pieces=("a", "", "b"), end=end)
    chunks = list(chat(door, stream=True))
    pieces = [chunk.choices[0].delta.content for chunk in chunks]
    assert pieces == ["", "a", "b", "!", None]
    assert chunks[-1].choices[0].finish_reason == "length"


def test_chat_logprobs_have_openais_shape(door, node):
    content = chat(door, logprobs=True, top_logprobs=2).choices[0].logprobs.content
    assert len(content) == 4
    assert [item.logprob for item in content] == [-0.25] * 4
    assert [len(item.top_logprobs) for item in content] == [2, 2, 2, 2]
    assert bytes(content[0].bytes).decode() == content[0].token


def test_streamed_chat_logprobs_are_one_a_chunk(door, node):
    chunks = [c.choices[0] for c in chat(door, stream=True, logprobs=True)]
    assert [len(c.logprobs.content) for c in chunks if c.logprobs] == [1, 1, 1, 1]


def test_completion_logprobs_have_openais_older_shape(door, node):
    answer = door.openai.completions.create(model="tiny", prompt="x", logprobs=1)
    logprobs = answer.choices[0].logprobs
    assert logprobs.token_logprobs == [-0.25] * 4
    assert logprobs.text_offset == [0, 6, 10, 17]
    assert [len(top) for top in logprobs.top_logprobs] == [2, 2, 2, 2]


def test_fields_beyond_openais_reach_the_request(door, node):
    extra = {"top_k": 7, "min_p": 0.1, "repetition_penalty": 1.2, "deadline_ms": 60_000}
    chat(door, max_completion_tokens=3, stop=["x"], seed=5, extra_body=extra)
    params = node.requests[0].params
    assert (
        params.top_k,
        params.min_p,
        params.repetition_penalty,
        params.max_tokens,
    ) == (7, 0.1, 1.2, 3)
    assert (params.stop, params.seed) == (("x",), 5)
    assert node.requests[0].deadline_ms is not None


def test_the_class_comes_from_the_body_then_the_header_then_standard(door, node):
    chat(door)
    chat(door, extra_headers={"X-Lockstep-SLA": "batch"})
    chat(door, extra_headers={"X-Lockstep-SLA": "batch"}, extra_body={"sla": "realtime"})
    assert [request.sla for request in node.requests] == ["standard", "batch", "realtime"]


def test_the_same_id_gives_the_first_ones_result(door, node):
    first = chat(door, extra_body={"id": "once"})
    node.play = Play(pieces=("other",))
    again = chat(door, extra_body={"id": "once"})
    assert first.choices[0].message.content == again.choices[0].message.content
    assert len(node.requests) == 1


def test_a_request_that_fails_is_an_error_with_its_code(door, node):
    end = EndEvent(status="failed", error="logits are not finite", code="numeric_error")
    node.play = Play(pieces=("a",), end=end)
    with pytest.raises(openai.InternalServerError, match="logits are not finite") as caught:
        chat(door)
    assert caught.value.code == "numeric_error"


def test_a_stream_that_fails_ends_with_the_error(door, node):
    end = EndEvent(status="failed", error="logits are not finite", code="numeric_error")
    node.play = Play(pieces=("a",), end=end)
    with pytest.raises(openai.APIError, match="logits are not finite"):
        list(chat(door, stream=True))


def test_a_cancelled_request_is_not_repeated_by_the_client(door, node):
    node.play = Play(end=EndEvent(status="cancelled", code="cancelled", error="cancelled"))
    eager = door.openai.with_options(max_retries=3)
    with pytest.raises(openai.APIStatusError) as caught:
        eager.chat.completions.create(model="tiny", messages=HELLO)
    assert caught.value.status_code == 499
    assert len(node.requests) == 1


def test_the_model_is_listed_with_its_context(door):
    models = door.openai.models.list().data
    assert [model.id for model in models] == ["tiny"]
    assert models[0].model_extra["max_model_len"] == 4096
    assert door.openai.models.retrieve("tiny").id == "tiny"
    with pytest.raises(openai.NotFoundError):
        door.openai.models.retrieve("other")


def test_tokenize_gives_what_a_request_would_have(door, node, text):
    chat(door)
    tokens = door.http.post("/v1/tokenize", json={"messages": HELLO}).json()["tokens"]
    assert list(node.requests[0].token_ids) == tokens
    plain = door.http.post("/v1/tokenize", json={"prompt": "Hello"}).json()
    assert {"count": len(plain["tokens"]), "max_model_len": 4096} == {
        name: plain[name] for name in ("count", "max_model_len")
    }
    assert b"".join(text.token_bytes(token) for token in plain["tokens"]) == b"Hello"


def test_text_comes_back_as_it_was_whatever_the_script(door, node):
    node.play = Play(pieces=("Καλ", "ημέρα", " 👋", "\n\u2028\r\ndata: x"))
    streamed = "".join(c.choices[0].delta.content or "" for c in chat(door, stream=True))
    assert streamed == "Καλημέρα 👋\n\u2028\r\ndata: x"
