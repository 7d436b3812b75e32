"""Each field of OpenAI's endpoints does what the table in docs/openai.md says, and a wrong value is
refused by the field's name."""

import pytest
from anthropic.types import message_create_params
from openai.types import completion_create_params
from openai.types.chat import completion_create_params as chat_create_params
from openai.types.responses import response_create_params

from tests.ingest.conformance import ENDPOINTS, PAGE, page
from tests.ingest.conformance_others import MESSAGES, OTHERS, RESPONSES
from tests.ingest.conftest import running
from tests.ingest.stub_node import StubNode

CASES = [
    pytest.param(endpoint, name, id=f"{endpoint} {name}")
    for endpoint, (_, fields) in ENDPOINTS.items()
    for name in fields
]


@pytest.fixture(scope="module")
def served(tiny_home, valkey_url, free_port):
    """One door and one stub for all the cases: none of them leaves anything behind."""
    from redis import Redis

    from workers.settings import Settings

    Redis.from_url(valkey_url).flushall()
    settings = Settings(home=tiny_home, redis_url=valkey_url, model="tiny", port=free_port())
    with running(settings) as door, StubNode(door.desk.store, door.desk.text) as node:
        yield door, node


def send(door, endpoint, name, value, field):
    required, _ = ENDPOINTS[endpoint]
    return door.http.post(endpoint, json={**required, **dict(field.beside), name: value})


@pytest.mark.parametrize(("endpoint", "name"), CASES)
def test_a_field_does_what_the_table_says(served, endpoint, name):
    door, node = served
    field = ENDPOINTS[endpoint][1][name]
    seen = len(node.requests)
    response = send(door, endpoint, name, field.value, field)
    if field.verdict == "refused":
        error = response.json()["error"]
        assert (response.status_code, param_of(error)) == (400, name)
        assert error["type"] == "invalid_request_error"
        return
    assert response.status_code == 200, response.text
    if field.seen is not None:
        request = node.requests[seen] if len(node.requests) > seen else None
        assert field.seen(request, response.json())
    elif name == "stream" and endpoint in OTHERS:
        assert response.text.startswith("event: ")
    elif name in ("stream", "stream_options") and endpoint not in OTHERS:
        assert response.text.endswith("data: [DONE]\n\n")
        assert ('"completion_tokens":4' in response.text) == (name == "stream_options")


@pytest.mark.parametrize(("endpoint", "name"), CASES)
def test_a_wrong_value_is_refused_by_the_fields_name(served, endpoint, name):
    door, _ = served
    field = ENDPOINTS[endpoint][1][name]
    assert field.wrong or field.verdict != "honoured", "an honoured field has wrong values"
    for case in field.wrong:
        value, named = case if isinstance(case, tuple) else (case, name)
        response = send(door, endpoint, name, value, field)
        error = response.json()["error"]
        assert response.status_code in (400, 404), (value, response.text)
        assert param_of(error) == named, (value, error)
        assert error["message"].startswith(named.partition("[")[0].partition(".")[0])
        assert error["type"] in ("invalid_request_error", "not_found_error")


def param_of(error) -> str:
    """The field that an error names; Anthropic's has it in its sentence alone."""
    return error["param"] if "param" in error else error["message"].partition(":")[0]


def test_no_field_of_the_client_is_left_out():
    chat = chat_create_params.CompletionCreateParamsBase.__annotations__
    assert ENDPOINTS["/v1/chat/completions"][1].keys() >= chat.keys()
    older = completion_create_params.CompletionCreateParamsBase.__annotations__
    assert ENDPOINTS["/v1/completions"][1].keys() >= older.keys()
    responses = response_create_params.ResponseCreateParamsBase.__annotations__
    assert RESPONSES.keys() >= responses.keys()
    messages = message_create_params.MessageCreateParamsBase.__annotations__
    assert MESSAGES.keys() >= messages.keys()


def test_a_field_that_nobody_knows_is_ignored(served):
    door, _ = served
    for endpoint, (required, _) in ENDPOINTS.items():
        assert door.http.post(endpoint, json={**required, "nobody_knows": [1]}).status_code == 200


@pytest.mark.parametrize("endpoint", ENDPOINTS)
@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"5", b'"x"', b"\xff", b"{" * 3000])
def test_a_body_that_is_no_object_is_refused(served, endpoint, body):
    door, _ = served
    response = door.http.post(endpoint, content=body)
    assert (response.status_code, response.json()["error"]["type"]) == (
        400,
        "invalid_request_error",
    )


def test_the_page_is_what_the_tests_say():
    assert PAGE.read_text() == page(), "python -m tests.ingest.conformance writes it"
