"""Responses as OpenAI's client sees them: whole, streamed, followed, kept, cancelled."""

import openai
import pytest

from ingest.responses.kept import Shelf
from tests.ingest.stub_node import Play
from workers.wire import EndEvent

TEXT = " Paris, of course."


def ask(door, given="What is the capital?", **more):
    return door.openai.responses.create(model="tiny", input=given, **more)


def test_a_text_is_answered(door, node):
    response = ask(door, max_output_tokens=4, metadata={"order": "7"})
    assert (response.status, response.output_text) == ("completed", TEXT)
    assert response.usage.output_tokens == 4 and response.metadata == {"order": "7"}
    (item,) = response.output
    assert (item.type, item.role, item.status) == ("message", "assistant", "completed")
    assert node.requests[0].params.max_tokens == 4


def test_an_answer_that_is_cut_says_so(door, node):
    node.play = Play(end=EndEvent(status="finished", finish_reason="length"))
    response = ask(door)
    assert response.status == "incomplete"
    assert response.incomplete_details.reason == "max_output_tokens"
    assert response.output[0].status == "incomplete"


def test_events_come_in_order_and_end_with_the_response(door, node):
    events = list(ask(door, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type.removeprefix("response.") for event in events]
    head = ["created", "in_progress", "output_item.added", "content_part.added"]
    tail = ["output_text.done", "content_part.done", "output_item.done", "completed"]
    assert kinds == [*head, *["output_text.delta"] * 4, *tail]
    said = "".join(e.delta for e in events if e.type == "response.output_text.delta")
    assert said == events[-1].response.output_text == TEXT
    assert events[-1].response == door.openai.responses.retrieve(events[-1].response.id)


def test_the_clients_own_accumulation_agrees(door, node):
    with door.openai.responses.stream(model="tiny", input="Hello") as stream:
        for _ in stream:
            pass
        assert stream.get_final_response().output_text == TEXT


def test_instructions_are_the_system_message_and_are_not_carried_on(door, node):
    first = ask(door, "One.", instructions="Be brief.")
    ask(door, "Two.", previous_response_id=first.id)
    roles = [[(m["role"], m["content"]) for m in r.messages] for r in node.requests]
    assert roles[0] == [("system", "Be brief."), ("user", "One.")]
    assert roles[1] == [("user", "One."), ("assistant", TEXT), ("user", "Two.")]


def test_a_conversation_stays_in_its_session_and_a_branch_gets_its_own(door, node):
    first = ask(door, "One.")
    second = ask(door, "Two.", previous_response_id=first.id)
    third = ask(door, "Three.", previous_response_id=second.id)
    branch = ask(door, "Other.", previous_response_id=first.id)
    sessions = [request.session_id for request in node.requests]
    assert sessions == [first.id, first.id, first.id, branch.id]
    assert {request.session_mode for request in node.requests} == {"history"}
    said = [message["content"] for message in node.requests[-1].messages]
    assert said == ["One.", TEXT, "Other."]
    assert third.previous_response_id == second.id


def test_what_is_not_stored_is_in_no_session_and_cannot_be_followed(door, node):
    response = ask(door, store=False)
    assert node.requests[0].session_id is None
    with pytest.raises(openai.NotFoundError):
        door.openai.responses.retrieve(response.id)
    with pytest.raises(openai.BadRequestError) as refused:
        ask(door, previous_response_id=response.id)
    assert refused.value.code == "previous_response_not_found"


def test_a_response_is_forgotten(door, node):
    response = ask(door)
    door.openai.responses.delete(response.id)
    with pytest.raises(openai.NotFoundError):
        door.openai.responses.retrieve(response.id)


def test_what_is_deleted_meanwhile_does_not_come_again(door, node):
    kept = Shelf(door.desk.store, "default")
    response = ask(door)
    door.openai.responses.delete(response.id)
    kept.end(response.id, {"id": response.id})
    assert not kept.follows(response.id, "resp_" + 24 * "0")
    assert not door.desk.store.redis.exists(kept.key(response.id))


def test_what_was_sent_is_listed(door, node):
    items = [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]
    response = ask(door, items)
    listed = door.openai.responses.input_items.list(response.id, order="asc", limit=1)
    assert [item.content[0].text for item in listed] == ["a", "b"]


def test_in_the_background_it_is_there_before_it_has_ended(door, node, wait_until):
    node.play = Play(pause_after=2)
    response = ask(door, background=True)
    assert (response.status, response.output) == ("in_progress", [])
    node.go.set()
    get = lambda: door.openai.responses.retrieve(response.id)  # noqa: E731
    wait_until(lambda: get().status == "completed")
    assert get().output_text == TEXT
    told = door.openai.responses.retrieve(response.id, stream=True, starting_after=3)
    numbers = [event.sequence_number for event in told]
    assert numbers == list(range(4, 12))


def test_in_the_background_it_can_be_cancelled(door, node, wait_until):
    node.play = Play(pause_after=2)
    response = ask(door, background=True)
    wait_until(lambda: node.requests and node.store.tokens(response.id))
    cancelled = door.openai.responses.cancel(response.id)
    assert cancelled.status == "cancelled"
    assert door.openai.responses.retrieve(response.id).status == "cancelled"


@pytest.mark.parametrize("number", ["\u00b2", "-\u00b2", "-1", "1e3", "", "9" * 30])
def test_a_number_that_is_none_is_refused(door, node, number):
    asked = {"stream": "true", "starting_after": number}
    told = door.http.get(f"/v1/responses/{ask(door).id}", params=asked)
    assert told.status_code == 400
    assert told.json()["error"]["param"] == "starting_after"


def test_who_watched_and_left_does_not_keep_it_from_being_cancelled(door, node, wait_until):
    node.play = Play(pause_after=2)
    asking = ask(door, stream=True)
    response = next(iter(asking)).response
    watching = door.openai.responses.retrieve(response.id, stream=True)
    next(iter(watching))
    watching.close()
    wait_until(lambda: door.desk.visitors.waiting[response.id] == 1)
    asking.close()
    wait_until(lambda: door.desk.store.job(response.id)["status"] == "cancelled")


def test_who_watched_and_left_cancels_nothing_in_the_background(door, node, wait_until):
    node.play = Play(pause_after=2)
    response = ask(door, background=True)
    wait_until(lambda: node.requests and node.store.tokens(response.id))
    watching = door.openai.responses.retrieve(response.id, stream=True)
    next(iter(watching))
    watching.close()
    wait_until(lambda: not door.desk.visitors.waiting)
    node.go.set()
    wait_until(lambda: door.openai.responses.retrieve(response.id).status == "completed")


def test_what_is_deleted_under_way_is_cancelled(door, node, wait_until):
    node.play = Play(pause_after=2)
    response = ask(door, background=True)
    wait_until(lambda: node.requests and node.store.tokens(response.id))
    door.openai.responses.delete(response.id)
    wait_until(lambda: node.store.job(response.id)["status"] == "cancelled")


def test_one_that_fails_is_an_error_and_the_last_event(door, node):
    node.play = Play(end=EndEvent(status="failed", code="numeric_error", error="not finite"))
    with pytest.raises(openai.InternalServerError, match="not finite"):
        ask(door)
    last = list(ask(door, stream=True))[-1]
    assert last.type == "response.failed" and last.response.error.code == "numeric_error"


def test_log_probabilities_are_asked_for_in_either_way(door, node):
    included = ask(door, include=["message.output_text.logprobs"])
    assert len(included.output[0].content[0].logprobs) == 4
    top = ask(door, top_logprobs=2).output[0].content[0].logprobs[0]
    assert len(top.top_logprobs) == 2


WRONG = {
    "max_output_tokens": {"max_output_tokens": 0},
    "temperature": {"temperature": 9},
    "input": {"input": []},
    "input[0].role": {"input": [{"role": "king", "content": ""}]},
    "input[0].content[0]": {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
    "input[0].type": {"input": [{"type": "computer_call"}]},
    "input[0].call_id": {"input": [{"type": "function_call", "name": "f", "arguments": "{}"}]},
    "instructions": {"instructions": 7},
    "tools[0].type": {"tools": [{"type": "web_search"}]},
    "tool_choice": {"tool_choice": "always"},
    "text.format": {"text": {"format": 7}},
    "truncation": {"truncation": "auto"},
    "conversation": {"conversation": "conv_1"},
    "include": {"include": ["file_search_call.results"]},
    "previous_response_id": {"previous_response_id": "resp_0"},
    "background": {"background": True, "store": False},
    "stream": {"stream": "yes"},
}


@pytest.mark.parametrize("field", WRONG)
def test_a_wrong_field_is_refused_by_its_name_in_this_api(door, field):
    body = {"model": "tiny", "input": "Hello", **WRONG[field]}
    response = door.http.post("/v1/responses", json=body)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["param"] == field and error["message"].startswith(field)
