"""What crosses Redis survives the crossing: events and jobs come back as they were."""

import msgspec
import pytest

from workers.wire import (
    END_ENTRY_ID,
    EndEvent,
    Keys,
    Request,
    SamplingParams,
    TokenEvent,
    Usage,
    WebhookTarget,
    full_id,
    split_id,
    token_entry_id,
)
from workers.wire_fields import end_fields, parse_entry, parse_job, request_fields, token_fields

TOKENS = [
    TokenEvent(index=0, token_id=7, text="", digest="0" * 16),
    TokenEvent(
        index=41, token_id=0, text="né\n", digest="f" * 16, logprobs=[(7, -0.25), (9, -1.5)]
    ),
    TokenEvent(index=1, token_id=1, text="x", digest="", logprobs=[]),
]
ENDS = [
    EndEvent(
        status="finished",
        finish_reason="stop",
        text="\ufffd",
        digest="ab",
        usage=Usage(prompt_tokens=3, output_tokens=2),
        ttft_ms=12.5,
        tpot_ms=0.125,
        queue_ms=0.0,
    ),
    EndEvent(status="failed", error="max_tokens: must be at least 1", code="bad_request"),
    EndEvent(status="cancelled", usage=Usage(prompt_tokens=3, output_tokens=0)),
    EndEvent(status="expired"),
]


def stored(fields):
    """As Redis gives them back: bytes."""
    as_bytes = lambda value: value if isinstance(value, bytes) else str(value).encode()  # noqa: E731
    return {key.encode(): as_bytes(value) for key, value in fields.items()}


@pytest.mark.parametrize("event", TOKENS)
def test_a_token_comes_back_as_it_was(event):
    assert parse_entry(token_entry_id(event.index), stored(token_fields(event))) == event


@pytest.mark.parametrize("event", ENDS)
def test_an_end_comes_back_as_it_was(event):
    assert parse_entry(END_ENTRY_ID.encode(), stored(end_fields(event))) == event


def test_an_end_has_a_terminal_status():
    with pytest.raises(AssertionError):
        end_fields(EndEvent(status="running"))


def test_entry_ids_are_in_the_order_of_tokens_and_before_the_end():
    ids = [tuple(map(int, token_entry_id(i).split("-"))) for i in (0, 1, 9, 10, 100_000)]
    assert ids == sorted(ids) and ids[-1] < tuple(map(int, END_ENTRY_ID.split("-")))
    assert token_entry_id(0) == "0-1"


def test_a_routed_request_comes_back_from_the_hash():
    request = Request(
        id="acme--r1",
        tenant="acme",
        model="m",
        token_ids=tuple(range(300)),
        arrival_ms=5,
        deadline_ms=9,
        params=SamplingParams(max_tokens=1, stop=("\n",), seed=2**64 - 1),
        webhook=WebhookTarget(
            url="https://example.com/", events=("finished", "failed"), secret_id="s2"
        ),
        metadata={"order": 7, "ü": None},
    )
    job = parse_job(stored(request_fields(request, "only pool")))
    assert msgspec.msgpack.decode(job["request"], type=Request) == request
    assert (job["deadline_ms"], job["prompt_tokens"], job["metadata"]) == (9, 300, request.metadata)
    assert (job["webhook_events"], job["webhook_secret_id"]) == ("finished,failed", "s2")


def test_every_key_begins_with_the_prefix():
    keys = Keys("{node}")
    no_keys = ("classes", "node", "own_pools")
    names = [value for name, value in vars(keys).items() if name not in no_keys]
    names += [
        keys.requests("batch"),
        keys.job("r"),
        keys.tokens("r"),
        keys.pool("cpu", "w"),
        keys.bell("cpu"),
    ]
    names += [
        keys.webhook("r"),
        keys.queue("cpu"),
        keys.rq_job("r"),
        keys.wip("cpu"),
        keys.router("a"),
    ]
    names += [keys.session("s"), keys.session_log("s"), keys.session_waiting("s")]
    names += [keys.worker("w"), keys.worker_executions("w"), *keys.lasting(), *keys.registries()]
    assert all(name.startswith("{node}") for name in names)


@pytest.mark.parametrize(
    ("tenant", "own_id", "in_keys"), [("default", "r-1", "r-1"), ("acme", "r-1", "acme--r-1")]
)
def test_a_tenant_reads_the_id_it_gave(tenant, own_id, in_keys):
    assert full_id(tenant, own_id) == in_keys
    assert split_id(in_keys) == (tenant, own_id)
