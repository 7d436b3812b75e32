"""Admission under anything that msgpack can say: never an exception, always the same answer."""

import json

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from router.admit import Reject, admit
from tests.router.wrong_fields import HOOK, REFUSED, WRONG_MESSAGES
from workers.wire import Request

ENTRY = "1799999999000-3"


def take(door, fields, *, sla="standard", entry_id=ENTRY, plain=False):
    return admit(fields, door, sla=sla, entry_id=entry_id, plain=plain)


# What msgpack can say, with our own names and plausible values more often than by chance.
NAMES = sorted({name for fields, *_ in REFUSED for name in fields} | {"messages", "id", "tenant"})
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(st.characters(exclude_categories=()), max_size=20)
    | st.binary(max_size=20)
    | st.sampled_from([value for fields, *_ in REFUSED for value in fields.values()])
    | st.sampled_from([messages for messages, *_ in WRONG_MESSAGES])
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["role", "content", "type", "url"]) | st.text(), inner)
    ),
    max_leaves=8,
)
GARBAGE = st.dictionaries(st.sampled_from(NAMES) | st.text() | st.integers(), VALUES) | VALUES
PLAUSIBLE = st.fixed_dictionaries(
    {"prompt": st.text(min_size=1, max_size=40)},
    optional={
        "id": st.from_regex(r"[A-Za-z0-9_]{1,64}", fullmatch=True),
        "tenant": st.from_regex(r"[a-z0-9]{1,32}", fullmatch=True),
        "max_tokens": st.integers(1, 20),
        "temperature": st.floats(0, 2),
        "top_p": st.floats(0, 1, exclude_min=True),
        "top_k": st.integers(-1, 1000),
        "stop": st.lists(st.text(min_size=1, max_size=5), max_size=16) | st.just("x"),
        "seed": st.integers(0, 2**64 - 1),
        "logprobs": st.integers(0, 20) | st.booleans(),
        "deadline_ms": st.integers(1, 10**9),
        "metadata": st.dictionaries(st.text(max_size=5), st.integers(0, 2**64 - 1) | st.text()),
        "webhook": st.just({"url": HOOK, "events": ["finished"]}),
        "session_id": st.from_regex(r"[A-Za-z0-9_]{1,64}", fullmatch=True),
    },
)


MESSAGES = st.lists(
    st.fixed_dictionaries(
        {
            "role": st.sampled_from(["system", "user", "assistant"]),
            "content": st.text(max_size=10),
        }
    ),
    min_size=1,
    max_size=3,
)
OF_A_SESSION = st.fixed_dictionaries(
    {"messages": MESSAGES, "session_id": st.just("s")},
    optional={"session_mode": st.sampled_from(["append", "history"])},
)


def without_surrogates(value):
    json.dumps(value, ensure_ascii=False).encode()


@given(fields=GARBAGE, plain=st.booleans())
def test_admit_never_raises_and_always_says_the_same(door, fields, plain):
    first, again = (take(door, fields, plain=plain) for _ in range(2))
    assert repr(first) == repr(again)
    if isinstance(first, Reject):
        without_surrogates([first.reason, first.field, first.request_id])


@given(fields=PLAUSIBLE | OF_A_SESSION)
def test_a_request_survives_the_wire(door, fields):
    request = take(door, fields)
    assert isinstance(request, (Request, Reject))
    if isinstance(request, Reject):  # a text of many tokens
        assert request.code == "context_length_exceeded" or request.field == "max_tokens"
        return
    assert request == msgspec.msgpack.decode(msgspec.msgpack.encode(request), type=Request)
