"""From each door to a result: a Redis stream to a signed webhook, OpenAI's client to a stream."""

import httpx
import pytest

from tests.node.running_node import PROGRAMS, wait_for

MODEL = "smollm2-135m"
GREEDY = [  # the float64 reference has margins above 2 here: no rounding can turn them
    ("The capital of France is", " Paris"),
    ("1, 2, 3, 4,", " 5, 6, 7"),
]


@pytest.mark.parametrize(("prompt", "begins"), GREEDY)
def test_a_real_model_answers(openai, prompt, begins):
    answer = openai.completions.create(model=MODEL, prompt=prompt, max_tokens=8, temperature=0)
    assert answer.choices[0].text.startswith(begins)
    assert answer.usage.completion_tokens == 8


@pytest.mark.parametrize(("prompt", "begins"), GREEDY)
def test_plain_words_on_a_stream_come_back_as_a_signed_webhook(node, receiver, prompt, begins):
    words = ["prompt", prompt, "max_tokens", "8", "temperature", "0"]
    request_id = node.add(*words, "webhook_url", receiver.url, "metadata", '{"order": 7}')
    ((webhook_id, event),) = wait_for(lambda: receiver.of(request_id), "webhook")
    assert webhook_id and event["type"] == "job.finished"
    assert event["data"]["text"].startswith(begins)
    assert event["data"]["metadata"] == {"order": 7}
    assert receiver.forged == 0
    job = node.end(request_id)
    assert (job["status"], job["text"]) == ("finished", event["data"]["text"])
    assert node.journalled(request_id)[1] == job["text"]


def test_openais_client_streams_a_chat(openai):
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    asked = {"model": MODEL, "messages": messages, "max_tokens": 24, "temperature": 0}
    whole = openai.chat.completions.create(**asked)
    chunks = list(openai.chat.completions.create(**asked, stream=True))
    pieces = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(pieces) == whole.choices[0].message.content
    assert sum(map(bool, pieces)) > 5
    assert chunks[-1].choices[0].finish_reason == whole.choices[0].finish_reason


def test_both_doors_give_the_same_text(node, openai):
    asked = {"prompt": "Once upon a time", "max_tokens": 20, "temperature": 0.9, "seed": 42}
    over_http = openai.completions.create(model=MODEL, **asked).choices[0].text
    words = [str(part) for pair in asked.items() for part in pair]
    assert node.end(node.add(*words, sla="batch"))["text"] == over_http


def test_a_job_is_accepted_followed_and_found(node):
    fields = {"id": "followed", "prompt": "Count: 1, 2,", "max_tokens": 12, "temperature": 0}
    accepted = httpx.post(f"{node.url}/v1/jobs", json=fields)
    assert (accepted.status_code, accepted.json()["id"]) == (202, "followed")
    events = httpx.get(f"{node.url}/v1/jobs/followed/events", timeout=120).text
    assert events.count("event: token") == 12 and events.count("event: end") == 1
    job = httpx.get(f"{node.url}/v1/jobs/followed").json()
    assert (job["status"], job["finish_reason"]) == ("finished", "length")
    assert len(job["digest"]) == 16
    again = httpx.post(f"{node.url}/v1/jobs", json=fields)
    assert (again.status_code, again.json()["status"]) == (200, "finished")


def test_a_job_is_cancelled(node):
    fields = {"id": "cancelled", "prompt": "Tell me a long story.", "max_tokens": 2000}
    httpx.post(f"{node.url}/v1/jobs", json=fields)
    wait_for(lambda: node.num_tokens("cancelled") > 3, "tokens")
    assert httpx.delete(f"{node.url}/v1/jobs/cancelled").json()["result"] == "cancelling"
    assert node.end("cancelled")["status"] == "cancelled"
    assert 3 < len(node.journalled("cancelled")[0]) < 2000


def test_log_probabilities_as_openais_client_asks_for_them(openai):
    messages = [{"role": "user", "content": "Name a colour."}]
    asked = {"model": MODEL, "messages": messages, "max_tokens": 4, "temperature": 0}
    answer = openai.chat.completions.create(**asked, logprobs=True, top_logprobs=3)
    tokens = answer.choices[0].logprobs.content
    assert len(tokens) == 4
    for token in tokens:
        assert [3, token.logprob] == [len(token.top_logprobs), token.top_logprobs[0].logprob]
    bare = openai.chat.completions.create(**asked, logprobs=True).choices[0].logprobs.content
    assert [token.logprob for token in bare] == [token.logprob for token in tokens]


def test_a_client_that_goes_away_cancels_its_request(node, openai):
    before = set(node.store.redis.scan_iter(node.store.keys.job("*")))
    stream = openai.completions.create(
        model=MODEL, prompt="A very long story:", max_tokens=3000, stream=True
    )
    next(iter(stream))
    stream.close()
    (key,) = set(node.store.redis.scan_iter(node.store.keys.job("*"))) - before
    request_id = key.decode().rpartition(":")[2]
    assert node.end(request_id)["status"] == "cancelled"


def test_many_at_once_give_what_each_gives_alone(node):
    prompts = [f"The number {n} is" for n in range(8)]
    asked = ["max_tokens", "16", "temperature", "0.7"]
    alone = [node.end(node.add("prompt", p, *asked, "seed", "5"))["text"] for p in prompts[:3]]
    together = [node.add("prompt", p, *asked, "seed", "5") for p in prompts]
    assert [node.end(request_id)["text"] for request_id in together][:3] == alone


def test_every_part_runs_and_health_says_so(node):
    assert {name: node.program(name).is_running() for name in PROGRAMS} == dict.fromkeys(
        PROGRAMS, True
    )
    assert httpx.get(f"{node.url}/healthz").status_code == 200
    assert "lockstep" in httpx.get(f"{node.url}/metrics").text
    assert [model["id"] for model in httpx.get(f"{node.url}/v1/models").json()["data"]] == [MODEL]
