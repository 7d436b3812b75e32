"""Batches as OpenAI's client sees them: a file in, rows out, whatever a line asks for."""

import openai
import pytest

from ingest.access import doorkeeper
from tests.ingest.batches.conftest import chat_line, jsonl
from tests.ingest.stub_node import Play, StubNode


def test_each_line_gets_its_row(client, node):
    begun = client.begin([chat_line(f"c{i}") for i in range(5)], metadata={"order": "7"})
    assert (begun.status, begun.metadata) == ("validating", {"order": "7"})
    batch = client.over(begun.id)
    assert batch.status == "completed" and batch.error_file_id is None
    counts = batch.request_counts
    assert (counts.total, counts.completed, counts.failed) == (5, 5, 0)
    rows = client.rows(batch.output_file_id)
    assert {row["custom_id"] for row in rows} == {f"c{i}" for i in range(5)}
    for row in rows:
        answer = row["response"]["body"]
        assert row["error"] is None and row["response"]["status_code"] == 200
        assert answer["choices"][0]["message"]["content"] == " Paris, of course."
        assert answer["object"] == "chat.completion"
    assert batch.usage.output_tokens == 5 * 4
    assert {request.sla for request in node.requests} == {"batch"}


def test_what_is_wrong_with_one_body_is_its_row_of_the_error_file(client, node):
    wrong = {"temperature": 9}, {"stream": True}, {"sla": "realtime"}, {"model": "other"}
    lines = [chat_line(f"w{i}", **body) for i, body in enumerate(wrong)]
    batch = client.over(client.begin([chat_line("good"), *lines]).id)
    assert batch.status == "completed"
    assert (batch.request_counts.completed, batch.request_counts.failed) == (1, 4)
    errors = {row["custom_id"]: row["response"] for row in client.rows(batch.error_file_id)}
    statuses = [errors[f"w{i}"]["status_code"] for i in range(4)]
    assert statuses == [400, 400, 400, 404]
    params = [errors[f"w{i}"]["body"]["error"]["param"] for i in range(4)]
    assert params == ["temperature", "stream", "sla", "model"]


def test_several_choices_of_a_line(client, node):
    batch = client.over(client.begin([chat_line("two", n=2)]).id)
    (row,) = client.rows(batch.output_file_id)
    assert len(row["response"]["body"]["choices"]) == 2


def test_completions_as_well(client, node):
    line = {**chat_line("p"), "url": "/v1/completions", "body": {"prompt": "The capital"}}
    file_id = client.upload(jsonl([line])).id
    begun = client.openai.batches.create(
        input_file_id=file_id, endpoint="/v1/completions", completion_window="1h"
    )
    (row,) = client.rows(client.over(begun.id).output_file_id)
    assert row["response"]["body"]["choices"][0]["text"] == " Paris, of course."


def test_responses_as_well(client, node):
    body = {"input": "The capital?", "max_output_tokens": 4}
    line = {**chat_line("r"), "url": "/v1/responses", "body": body}
    wrong = {**line, "custom_id": "w", "body": {**body, "max_output_tokens": 0}}
    begun = client.openai.batches.create(
        input_file_id=client.upload(jsonl([line, wrong])).id,
        endpoint="/v1/responses",
        completion_window="1h",
    )
    batch = client.over(begun.id)
    (row,) = client.rows(batch.output_file_id)
    response = row["response"]["body"]
    assert response["output"][0]["content"][0]["text"] == " Paris, of course."
    assert client.openai.responses.retrieve(response["id"]).id == response["id"]
    assert batch.usage.output_tokens == 4
    (error,) = client.rows(batch.error_file_id)
    assert error["response"]["body"]["error"]["param"] == "max_output_tokens"


FAULTS = {
    "invalid_json_line": b"{nothing\n",
    "invalid_request": b'{"custom_id": 7}\n',
    "duplicate_custom_id": jsonl([chat_line("a"), chat_line("a")]),
    "mismatched_url": jsonl([{**chat_line("a"), "url": "/v1/completions"}]),
    "invalid_method": jsonl([{**chat_line("a"), "method": "GET"}]),
    "invalid_custom_id": jsonl([chat_line("")]),
    "empty_file": b"\n\n",
}


@pytest.mark.parametrize("code", FAULTS)
def test_a_fault_of_the_file_is_told_with_its_line_and_nothing_runs(client, code):
    file_id = client.upload(FAULTS[code]).id
    begun = client.openai.batches.create(
        input_file_id=file_id, endpoint="/v1/chat/completions", completion_window="24h"
    )
    batch = client.over(begun.id)
    assert batch.status == "failed" and batch.request_counts.completed == 0
    (fault,) = batch.errors.data
    assert fault.code == code
    assert fault.line in (None, 1, 2)


class Freely(StubNode):
    """Ends the first two requests, and holds the third."""

    def may_go_on(self, request_id: str) -> bool:
        return len(self.requests) <= 2 or super().may_go_on(request_id)


def test_results_are_read_while_the_rest_runs_and_after_it_is_cancelled(
    client, door, text, wait_until
):
    with Freely(door.desk.store, text) as node:
        node.play = Play(pause_after=1)
        begun = client.begin([chat_line(f"c{i}") for i in range(6)])
        counts = lambda: client.openai.batches.retrieve(begun.id).request_counts  # noqa: E731
        wait_until(lambda: counts().completed == 2)
        output = client.openai.batches.retrieve(begun.id).output_file_id
        assert len(client.rows(output)) == 2
        with pytest.raises(openai.ConflictError):
            client.openai.files.delete(output)
        assert client.openai.batches.cancel(begun.id).status == "cancelling"
        batch = client.over(begun.id)
    assert (batch.status, batch.output_file_id, batch.error_file_id) == ("cancelled", output, None)
    assert len({row["custom_id"] for row in client.rows(output)}) == 2
    with pytest.raises(openai.ConflictError):
        client.openai.batches.cancel(begun.id)
    assert client.openai.files.delete(output).deleted


def test_what_waits_is_cancelled_with_its_batch(client, door, wait_until):
    """Nobody routes here: all lines wait."""
    begun = client.begin([chat_line(f"c{i}") for i in range(3)])
    store = door.desk.store
    wait_until(lambda: store.job(f"{begun.id}-3") is not None)
    assert client.openai.batches.cancel(begun.id).status == "cancelling"
    batch = client.over(begun.id)
    assert batch.status == "cancelled" and batch.cancelled_at
    assert {store.job(f"{begun.id}-{n}")["status"] for n in (1, 2, 3)} == {"cancelled"}
    assert (batch.output_file_id, batch.error_file_id) == (None, None)


def test_what_is_late_is_told_line_by_line(client, door):
    batch = client.over(client.begin([chat_line("a"), chat_line("b")], window="1s").id)
    assert batch.status == "expired" and batch.request_counts.failed == 2
    rows = client.rows(batch.error_file_id)
    assert [row["custom_id"] for row in sorted(rows, key=lambda r: r["custom_id"])] == ["a", "b"]
    assert {row["error"]["code"] for row in rows} == {"batch_expired"}


def test_a_full_node_is_waited_for(client, door, node, wait_until, monkeypatch):
    """No line is lost for it, and no promise counts as broken."""
    monkeypatch.setattr(doorkeeper, "RETRY_FULL_S", 0.1)
    node.is_reading = False
    for index in range(50):
        door.http.post("/v1/jobs", json={"prompt": "Hello", "sla": "batch", "id": f"j{index}"})
    begun = client.begin([chat_line("late")])
    wait_until(lambda: client.openai.batches.retrieve(begun.id).status == "in_progress")
    node.is_reading = True
    batch = client.over(begun.id)
    assert batch.request_counts.completed == 1
    promises = door.desk.store.redis.hgetall(door.desk.keys.promises)
    assert not [field for field in promises if b"queue_full" in field]


def test_batches_are_listed_page_by_page_newest_first(client, door):
    made = [client.begin([chat_line("a")]).id for _ in range(3)]
    first = client.openai.batches.list(limit=2)
    assert [batch.id for batch in first.data] == made[:0:-1] and first.has_more
    assert [batch.id for batch in client.openai.batches.list(limit=2)] == made[::-1]


WRONG = {
    "endpoint": {"endpoint": "/v1/embeddings"},
    "completion_window": {"completion_window": "31d"},
    "input_file_id": {"input_file_id": "file-none"},
    "metadata": {"metadata": {"a": 1}},
    "output_expires_after.seconds": {
        "output_expires_after": {"anchor": "created_at", "seconds": 5}
    },
}


def test_an_endpoint_of_any_type_is_refused_in_words(door):
    """Found by schemathesis: a map was looked up among names."""
    for endpoint in ({}, [], 7, True, ["/v1/completions"]):
        body = {"input_file_id": "", "endpoint": endpoint, "completion_window": "24h"}
        assert door.http.post("/v1/batches", json=body).status_code == 400


@pytest.mark.parametrize("field", WRONG)
def test_a_wrong_field_is_refused_by_name(client, door, field):
    file_id = client.upload(jsonl([chat_line("a")])).id
    good = {"input_file_id": file_id, "endpoint": "/v1/chat/completions"}
    body = {**good, "completion_window": "24h", **WRONG[field]}
    response = door.http.post("/v1/batches", json=body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == field


def test_a_batch_that_is_none(client):
    with pytest.raises(openai.NotFoundError):
        client.openai.batches.retrieve("batch_none")
