"""The published schema and admit say the same, as far as a schema can say it."""

import json

import pytest
from hypothesis import given
from jsonschema import Draft202012Validator

from router.admit import Reject, admit
from router.schema import request_schema
from tests.router.test_admit_fuzz import GARBAGE, OF_A_SESSION, PLAUSIBLE
from tests.router.wrong_fields import REFUSED, WRONG_MESSAGES
from workers.wire import SLA_CLASSES

VALIDATOR = Draft202012Validator(request_schema(SLA_CLASSES))

# only the node can say: the model, its context, addresses, UTF-8, and sizes of the whole
BEYOND_A_SCHEMA = {"model", "metadata", "webhook.url", "webhook_url"}
SENTENCES_BEYOND = (
    "must not differ",
    "needs logprobs",
    "not both",
    "UTF-8",
    "on this stream",
    "goes with",
    # among the tools; what of a schema or a grammar can be enforced
    *("given once", "needs tools", "one of the tools", "does not go with", "0 to 511"),
    *("Invalid type", "Unimplemented", "nothing", "65536", "at most 900", "cannot be"),
)


def valid(fields):
    return VALIDATOR.is_valid({key: value for key, value in fields.items() if value is not None})


def test_the_schema_is_a_schema_and_is_json():
    Draft202012Validator.check_schema(request_schema(SLA_CLASSES))
    json.dumps(request_schema(SLA_CLASSES), allow_nan=False)


@given(fields=PLAUSIBLE | OF_A_SESSION | GARBAGE)
def test_what_admit_takes_is_valid(door, fields):
    if isinstance(admit(fields, door, sla="batch", entry_id="1-1", plain=False), Reject):
        return
    assert valid(fields), list(VALIDATOR.iter_errors(fields))


def can_be_said(field, sentence, code):
    """Whether a schema could know it: the place of a refusal, without the node's own facts."""
    if code in ("context_length_exceeded", "model_not_found") or sentence in SENTENCES_BEYOND:
        return False
    return field.partition("[")[0] not in BEYOND_A_SCHEMA and "key of" not in field


@pytest.mark.parametrize(
    "fields",
    [
        fields
        for fields, field, sentence, code in REFUSED
        if can_be_said(field, sentence, code)
        and not any(word in sentence for word in (*SENTENCES_BEYOND, "got inf", "got nan"))
        and fields not in ({"max_tokens": 10**9}, {"max_tokens": 2**200}, {"max_tokens": 5.0})
        and fields != {"top_k": 1.0}
    ],
    ids=str,
)
def test_what_admit_refuses_is_not_valid(fields):
    assert not valid({"prompt": "Hello", **fields})


@pytest.mark.parametrize(
    "messages",
    [
        messages
        for messages, _, sentence in WRONG_MESSAGES
        if not any(word in sentence for word in ("128", "UTF-8", "bytes", "a JSON object"))
    ],
    ids=str,
)
def test_wrong_messages_are_not_valid(messages):
    assert not valid({"messages": messages})
