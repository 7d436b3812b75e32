"""Every field of a request: what is taken, and the sentence with which all else is refused."""

import dataclasses
import json
import shutil

import msgspec
import pytest

from router.admit import Door, Reject, admit
from router.refusal import shown
from tests.router.wrong_fields import HOOK, REFUSED, WRONG_MESSAGES
from workers.text.text_model import TextModel
from workers.wire import Request, WebhookTarget

ENTRY = "1799999999000-3"


def take(door, fields, *, sla="standard", entry_id=ENTRY, plain=False):
    return admit(fields, door, sla=sla, entry_id=entry_id, plain=plain)


def good(door, **fields):
    request = take(door, {"prompt": "Hello", **fields})
    assert isinstance(request, Request), request
    return request


def test_a_prompt_alone_is_a_request(door):
    request = good(door)
    assert f"standard-{ENTRY}" == request.id
    assert (request.tenant, request.model, request.sla) == ("default", "tiny-llama", "standard")
    assert tuple(door.text.encode("Hello")) == request.token_ids
    assert door.text.context_length - len(request.token_ids) == request.params.max_tokens
    assert (
        request.params.temperature,
        request.params.top_p,
        request.params.top_k,
    ) == (1.0, 1.0, 0)
    assert request.deadline_ms is None and request.webhook is None and request.metadata == {}


def test_arrival_is_when_the_stream_took_it(door):
    """Also when the entry is delivered again later, so that a deadline does not move."""
    assert good(door).arrival_ms == 1_799_999_999_000
    assert good(door, deadline_ms=5000).deadline_ms == 1_799_999_999_000 + 5000


def test_arrival_is_now_without_a_stream_or_with_an_entry_id_of_the_future(door):
    from_http = take(door, {"id": "a", "prompt": "x"}, sla=None, entry_id=None)
    from_future = take(door, {"id": "a", "prompt": "x"}, entry_id="1900000000000-0")
    assert (door.now_ms, door.now_ms) == (from_http.arrival_ms, from_future.arrival_ms)


@pytest.mark.parametrize(
    ("fields", "request_id", "tenant"),
    [
        ({"id": "a"}, "a", "default"),
        ({"id": "A_z-0" * 12}, "A_z-0" * 12, "default"),
        ({"id": "a", "tenant": "default"}, "a", "default"),
        ({"id": "a", "tenant": "acme7"}, "acme7--a", "acme7"),
        ({"tenant": "acme7"}, f"acme7--standard-{ENTRY}", "acme7"),
    ],
)
def test_an_id_belongs_to_its_tenant(door, fields, request_id, tenant):
    request = good(door, **fields)
    assert (request_id, tenant) == (request.id, request.tenant)


@pytest.mark.parametrize(
    ("fields", "field", "found_under"),
    [
        ({"id": ""}, "id", f"standard-{ENTRY}"),
        ({"id": "a" * 65}, "id", f"standard-{ENTRY}"),
        ({"id": "a b"}, "id", f"standard-{ENTRY}"),
        ({"id": "a\n"}, "id", f"standard-{ENTRY}"),
        ({"id": "ä"}, "id", f"standard-{ENTRY}"),
        ({"id": "a--b"}, "id", f"standard-{ENTRY}"),
        ({"id": 7}, "id", f"standard-{ENTRY}"),
        ({"id": "a--b", "tenant": "acme"}, "id", f"acme--standard-{ENTRY}"),
        ({"id": "a", "tenant": "Acme"}, "tenant", "a"),
        ({"id": "a", "tenant": ""}, "tenant", "a"),
        ({"id": "a", "tenant": "a" * 33}, "tenant", "a"),
        ({"id": "a", "tenant": ["x"]}, "tenant", "a"),
        ({"tenant": "a-b"}, "tenant", f"standard-{ENTRY}"),
        ({"id": "a", "max_tokens": -5}, "max_tokens", "a"),
        ({"id": "a", "tenant": "acme", "max_tokens": 0}, "max_tokens", "acme--a"),
    ],
)
def test_a_refusal_stands_where_its_sender_looks(door, fields, field, found_under):
    reject = take(door, {"prompt": "Hello", **fields})
    assert (field, found_under) == (reject.field, reject.request_id)
    assert reject.reason.startswith(f"{field}: ")


def test_the_http_door_must_name_the_request(door):
    reject = take(door, {"prompt": "Hello"}, sla=None, entry_id=None)
    assert (reject.field, reject.request_id) == ("id", None)


def test_a_refusal_is_posted_to_the_webhook(door):
    reject = take(door, {"prompt": "", "webhook_url": HOOK, "tenant": "acme"})
    assert (WebhookTarget(url=HOOK), "acme") == (reject.webhook, reject.tenant)


def test_a_refused_webhook_is_not_posted_to(door):
    assert take(door, {"prompt": "x", "webhook_url": "http://10.0.0.1/"}).webhook is None


def test_max_tokens_says_what_is_allowed_and_why(door):
    reject = take(door, {"token_ids": [1], "max_tokens": -5})
    assert reject.reason == (
        "max_tokens: must be an integer from 1 to 127 "
        "(the model's context is 128 and the prompt has 1 token), got -5"
    )


def test_a_pool_with_little_memory_leaves_less_room(door):
    small = dataclasses.replace(door, max_sequence_tokens=64)
    assert take(small, {"token_ids": [1, 2, 3]}).params.max_tokens == 61
    assert "this node's memory" in take(small, {"token_ids": [1], "max_tokens": 64}).reason
    too_large = take(small, {"token_ids": [1] * 64})
    assert (too_large.field, too_large.code) == ("token_ids", "too_large")


@pytest.mark.parametrize(
    ("fields", "field", "sentence", "code"),
    REFUSED,
    ids=[f"{field}-{n}" for n, (_, field, *_) in enumerate(REFUSED)],
)
def test_a_wrong_field_is_named(door, fields, field, sentence, code):
    reject = take(door, {"prompt": "Hello", **fields})
    assert isinstance(reject, Reject), reject
    assert (field, code) == (reject.field, reject.code)
    assert reject.reason.startswith(f"{field}: ") and sentence in reject.reason


@pytest.mark.parametrize(("messages", "field", "sentence"), WRONG_MESSAGES)
def test_a_wrong_message_is_named(door, messages, field, sentence):
    reject = take(door, {"messages": messages})
    assert field == reject.field
    assert sentence in reject.reason


@pytest.mark.parametrize(
    ("token_ids", "field"),
    [
        ([], "token_ids"),
        ("1,2", "token_ids"),
        ({"a": 1}, "token_ids"),
        ([1, -1], "token_ids[1]"),
        ([512], "token_ids[0]"),
        ([1.0], "token_ids[0]"),
        ([True], "token_ids[0]"),
        ([1] * 128, "token_ids"),
    ],
)
def test_wrong_token_ids_are_named(door, token_ids, field):
    assert field == take(door, {"token_ids": token_ids}).field


def test_messages_go_through_the_models_template(door):
    parts = [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]
    messages = [{"role": "developer", "content": "Be brief"}, {"role": "user", "content": parts}]
    plain = [{"role": "system", "content": "Be brief"}, {"role": "user", "content": "Hello"}]
    assert tuple(door.text.render(plain)) == take(door, {"messages": messages}).token_ids


def test_token_ids_are_taken_as_they_are(door):
    assert take(door, {"token_ids": [5, 511, 0]}).token_ids == (5, 511, 0)
    assert take(door, {"prompt": [5, 511, 0]}).token_ids == (5, 511, 0)


def test_control_tokens_in_a_prompt_are_control_tokens(door):
    """And in a message they are text: nobody can speak in another's role."""
    prompt = take(door, {"prompt": "<|im_end|>"}).token_ids
    message = take(door, {"messages": [{"role": "user", "content": "<|im_end|>"}]}).token_ids
    empty = take(door, {"messages": [{"role": "user", "content": ""}]}).token_ids
    assert len(prompt) == 1
    assert empty.count(prompt[0]) == message.count(prompt[0])


def test_the_last_place_of_the_context_can_be_used(door):
    request = take(door, {"token_ids": [1] * (127)})
    assert request.params.max_tokens == 1


def test_every_sampling_parameter_arrives(door):
    sampling = {
        "max_tokens": 7,
        "temperature": 0,
        "top_p": 0.5,
        "top_k": -1,
        "min_p": 0.1,
        "presence_penalty": -2,
        "frequency_penalty": 2,
        "repetition_penalty": 1.3,
        "stop": ["a", "b", "a"],
        "seed": 2**64 - 1,
        "choice": 3,
        "logit_bias": {"7": -100, "2": 1.5},
        "logprobs": 20,
    }
    expected = {**sampling, "top_k": 0, "stop": ("a", "b")}
    expected["logit_bias"] = ((2, 1.5), (7, -100.0))
    assert expected == msgspec.structs.asdict(good(door, **sampling).params)


@pytest.mark.parametrize(
    ("fields", "logprobs"),
    [
        ({}, None),
        ({"logprobs": False}, None),
        ({"logprobs": False, "top_logprobs": 0}, None),
        ({"logprobs": 0}, 0),
        ({"logprobs": True}, 0),
        ({"logprobs": True, "top_logprobs": 4}, 4),
    ],
)
def test_logprobs_as_both_apis_have_them(door, fields, logprobs):
    assert logprobs == good(door, **fields).params.logprobs


def test_max_completion_tokens_is_max_tokens(door):
    assert good(door, max_completion_tokens=9).params.max_tokens == 9
    assert good(door, max_completion_tokens=9, max_tokens=9).params.max_tokens == 9


def test_an_absent_seed_comes_from_the_full_id(door):
    first, again = good(door, id="a"), good(door, id="a")
    other, tenant = good(door, id="b"), good(door, id="a", tenant="acme")
    assert first.params.seed == again.params.seed
    assert len({first.params.seed, other.params.seed, tenant.params.seed}) == 3
    assert good(door, seed=0).params.seed == 0


def test_a_webhook_says_which_events_it_wants(door):
    webhook = {"url": HOOK, "events": ["failed", "started", "failed"], "secret_id": "s_1"}
    expected = WebhookTarget(url=HOOK, events=("failed", "started"), secret_id="s_1")
    assert expected == good(door, webhook=webhook).webhook


def test_an_allowed_private_webhook_is_taken(door):
    assert good(door, webhook_url="http://127.0.0.1:9/x").webhook.url == "http://127.0.0.1:9/x"


def test_null_is_absent_and_unknown_fields_are_ignored(door):
    nulls = dict.fromkeys(("id", "sla", "stop", "seed", "tools", "webhook", "session_id"))
    assert good(door) == good(door, **nulls, user="me", stream=True, frobnicate=[1])


def test_values_that_ask_for_nothing_are_no_refusal(door):
    harmless = {"n": 1, "tools": [], "response_format": {"type": "text"}, "logit_bias": {}}
    assert good(door) == good(door, **harmless, tool_choice="none", echo=False)


@pytest.mark.parametrize("fields", [None, 5, "x", [], b"", 1.5, True])
def test_what_is_no_map_is_refused(door, fields):
    assert (take(door, fields).field, take(door, fields).code) == ("request", "undecodable")


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("a" * 100, repr("a" * 60) + "..."),
        ("\udcff", repr("\udcff")),
        (2**200, "a number beyond 64 bits"),
        ([1, 2], "a list of 2"),
        (object(), "a object"),
    ],
)
def test_any_value_is_shown_in_few_words(value, words):
    assert words == shown(value)
    shown(value).encode()


def test_what_the_template_is_told_reaches_it(tmp_path, text_home):
    """As vLLM's clients switch thinking off."""
    folder = tmp_path / "model"
    shutil.copytree(text_home / "models" / "tiny-llama", folder)
    card = json.loads((folder / "card.json").read_text())
    card["text"]["template"] = "{{ 'think' if enable_thinking | default(true) else 'quiet' }}"
    (folder / "card.json").write_text(json.dumps(card))
    text = TextModel.load(folder)
    door = Door(text=text, now_ms=1, allow=())
    fields = {"messages": [{"role": "user", "content": "Hello"}]}
    for told, said in (({}, "think"), ({"enable_thinking": False}, "quiet")):
        request = admit(
            {**fields, "chat_template_kwargs": told}, door, sla="batch", entry_id="1-1", plain=False
        )
        assert list(request.token_ids) == text.encode(said)


# --- sessions ---


def user(content):
    return {"role": "user", "content": content}


def test_a_sessions_messages_wait_for_their_history(door):
    messages = [user("Hello")]
    fields = {"messages": messages, "session_id": "a-B_9", "session_mode": "append"}
    request = take(door, fields)
    assert (request.session_id, request.session_mode) == ("a-B_9", "append")
    assert (request.token_ids, request.messages) == ((), tuple(messages))
    assert not request.composed
    room = door.text.context_length - len(door.text.render(messages))
    assert request.params.max_tokens == room


def test_a_sessions_prompt_is_encoded_at_the_door(door):
    request = good(door, session_id="s")
    assert request.token_ids == tuple(door.text.encode("Hello"))
    assert (request.messages, request.session, request.composed) == ((), "s", False)


def test_a_line_end_is_no_part_of_a_name(door):
    """Python's $ would let it through."""
    assert take(door, {"prompt": "Hello", "session_id": "a\n"}).field == "session_id"


def test_a_session_belongs_to_its_tenant(door):
    assert good(door, session_id="s", tenant="acme", id="a").session == "acme--s"


def test_what_the_template_is_told_waits_with_the_messages(door):
    told = {"enable_thinking": False}
    fields = {"messages": [user("Hello")], "session_id": "s", "chat_template_kwargs": told}
    assert take(door, fields).variables == told
    assert take(door, {**fields, "session_id": None}).variables == {}


def test_what_is_new_must_fit_by_itself(door):
    fields = {"messages": [user("x " * 300)], "session_id": "s"}
    reject = take(door, fields)
    assert (reject.field, reject.code) == ("messages", "context_length_exceeded")
    reject = take(door, {"messages": [user("x")], "session_id": "s", "max_tokens": 128})
    assert reject.field == "max_tokens"


@pytest.mark.parametrize(
    ("mode", "is_taken"), [({}, True), ({"session_mode": "append"}, True), (None, False)]
)
def test_what_is_appended_need_be_no_conversation(tmp_path, text_home, mode, is_taken):
    """Whether the template takes it is seen when the history stands before it."""
    folder = tmp_path / "model"
    shutil.copytree(text_home / "models" / "tiny-llama", folder)
    card = json.loads((folder / "card.json").read_text())
    card["text"]["template"] = "{{ raise_exception('roles must alternate') }}"
    (folder / "card.json").write_text(json.dumps(card))
    door = Door(text=TextModel.load(folder), now_ms=1, allow=())
    session = {"session_mode": "history"} if mode is None else mode
    answer = take(door, {"messages": [user("Hello")], "session_id": "s", **session})
    assert isinstance(answer, Request) == is_taken
    if not is_taken:
        assert "roles must alternate" in answer.reason
