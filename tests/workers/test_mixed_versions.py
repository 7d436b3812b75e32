"""Nodes of several versions on one Redis read each other: what is newer is passed over.

golden/wire_v1.json is what the first version that had all of it wrote; later ones go on reading it.
"""

import base64
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ingest.access.keys import Key, Limits
from ingest.dashboard.look import look
from router.entry import read_entry
from router.pools import views_of
from workers.cost import CostModel
from workers.wire import Keys, PoolLoad, Pressure, Request, SamplingParams, WebhookTarget
from workers.wire_fields import (
    end_of,
    parse_entry,
    parse_job,
    parse_request,
    parse_session,
    parse_webhook,
)
from workers.worker_store import WorkerStore

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "wire_v1.json").read_text())
# What every reader may rely upon, for ever; whatever was added since has a default.
REQUIRED = {
    Request: {"id", "model", "token_ids", "arrival_ms", "params"},
    SamplingParams: {"max_tokens"},
    WebhookTarget: {"url"},
    PoolLoad: {"pool", "worker", "state"},
    CostModel: {"fixed_ms"},
    Pressure: {"waiting", "most"},
    Key: {"id"},
    Limits: set(),
}
JSON_KINDS = {"load": PoolLoad, "pressure": Pressure, "key": Key}
NEWS = [7, "ü", None, [1, {"a": []}], {"b": 2.5}, True]  # values of fields that nobody knows here


def stored(fields: dict[str, str]) -> dict[bytes, bytes]:
    """As Redis gives a recorded hash or entry; bytes were recorded in base64."""
    told = {name.encode(): value.encode() for name, value in fields.items()}
    if b"request" in told:
        told[b"request"] = base64.b64decode(told[b"request"])
    return told


STRUCTS_IN = ("params", "webhook", "cost", "limits")


def with_news(value: Any, news: Any) -> Any:
    """The same object with a field more, and in the objects in it that are structs."""
    parts = {name: with_news(value[name], news) for name in STRUCTS_IN if value.get(name)}
    return {"from_tomorrow": news, **value, **parts, "zz_from_tomorrow": news}


@pytest.mark.parametrize("kind", REQUIRED, ids=lambda kind: kind.__name__)
def test_nothing_is_required_that_an_older_node_does_not_write(kind):
    required = {field.name for field in msgspec.structs.fields(kind) if field.required}
    assert required == REQUIRED[kind]


@pytest.mark.parametrize("kind", REQUIRED, ids=lambda kind: kind.__name__)
def test_no_struct_refuses_what_it_does_not_know(kind):
    assert kind.__struct_config__.forbid_unknown_fields is False
    assert kind.__struct_config__.array_like is False, "fields go by name, not by place"


@pytest.mark.parametrize("name", JSON_KINDS)
def test_what_version_1_wrote_is_read(name):
    told = msgspec.json.decode(GOLDEN[name]["json"], type=JSON_KINDS[name])
    held = json.loads(msgspec.json.encode(told))
    assert {field: held[field] for field in GOLDEN[name]["holds"]} == GOLDEN[name]["holds"]


@pytest.mark.parametrize("news", NEWS, ids=repr)
@pytest.mark.parametrize("name", JSON_KINDS)
def test_fields_from_tomorrow_are_passed_over(name, news):
    kind, told = JSON_KINDS[name], json.loads(GOLDEN[name]["json"])
    raw = msgspec.json.encode(with_news(told, news))
    assert msgspec.json.decode(raw, type=kind) == msgspec.json.decode(
        GOLDEN[name]["json"], type=kind
    )


@pytest.mark.parametrize("name", JSON_KINDS)
def test_fields_that_an_older_node_does_not_write_have_a_default(name):
    kind = JSON_KINDS[name]
    told = {f: v for f, v in json.loads(GOLDEN[name]["json"]).items() if f in REQUIRED[kind]}
    assert msgspec.json.decode(msgspec.json.encode(told), type=kind) == kind(**told)


def test_a_request_of_version_1_is_read():
    raw = base64.b64decode(GOLDEN["request"]["msgpack"])
    held = json.loads(msgspec.json.encode(parse_request(raw)))
    assert {name: held[name] for name in GOLDEN["request"]["holds"]} == GOLDEN["request"]["holds"]


@pytest.mark.parametrize("news", NEWS, ids=repr)
def test_a_request_from_tomorrow_is_read_as_far_as_it_is_known(news):
    raw = base64.b64decode(GOLDEN["request"]["msgpack"])
    later = msgspec.msgpack.encode(with_news(msgspec.msgpack.decode(raw), news))
    assert parse_request(later) == parse_request(raw)


def test_a_request_that_means_something_else_is_not_run():
    """To pass over what changes tokens would be another answer than the newer nodes give."""
    told = msgspec.msgpack.decode(base64.b64decode(GOLDEN["request"]["msgpack"]))
    with pytest.raises(ValueError, match="version 2"):
        parse_request(msgspec.msgpack.encode(told | {"v": 2}))
    with pytest.raises(ValueError, match="cannot be read"):
        parse_request(msgspec.msgpack.encode(told | {"params": 3}))


@pytest.mark.parametrize("name", ["token entry", "end entry"])
def test_entries_of_version_1_are_read_and_news_in_them_are_passed_over(name):
    entry = GOLDEN[name]
    event = parse_entry(entry["id"], stored(entry["fields"]))
    assert json.loads(msgspec.json.encode(event)) == entry["holds"]
    later = stored(entry["fields"] | {"from_tomorrow": "7"}) | {b"raw": b"\xff\x00"}
    assert parse_entry(entry["id"], later) == event


PARSERS = {"job": parse_job, "session": parse_session, "webhook": parse_webhook}


@pytest.mark.parametrize("name", PARSERS)
def test_hashes_of_version_1_are_read_and_news_in_them_are_passed_over(name):
    parse, fields = PARSERS[name], stored(GOLDEN[name]["fields"])
    told = parse(fields)
    assert {key: told[key] for key in GOLDEN[name]["holds"]} == GOLDEN[name]["holds"]
    later = parse(fields | {b"from_tomorrow": b"\xff\x00"})
    assert {key: later[key] for key in told} == told


@pytest.mark.parametrize("name", PARSERS)
def test_a_hash_that_lacks_any_of_its_fields_is_read(name):
    fields = stored(GOLDEN[name]["fields"])
    for lacking in fields:
        told = PARSERS[name]({key: value for key, value in fields.items() if key != lacking})
        if name == "job" and lacking != b"status":
            assert end_of(told).status == "finished"


def test_a_message_with_fields_from_tomorrow_is_one_with_them():
    """Admission looks at what it knows (test_admit.py); reading keeps all of it."""
    raw = base64.b64decode(GOLDEN["message"]["msgpack"])
    fields, plain = read_entry({b"m": raw, b"arrived": b"5-0", b"from_tomorrow": b"\xff"})
    assert (fields, plain) == (GOLDEN["message"]["holds"], False)


@pytest.mark.parametrize(
    "report", ["{", '{"pool": 7, "worker": "w", "state": "ready"}', "[]", "\xff"]
)
def test_a_report_that_cannot_be_read_hides_no_other_one(redis_url, report):
    """A node that says nonsense, by fault or by being much newer, blinds nobody."""
    store = WorkerStore(redis_url, Keys("lockstep"))
    load = PoolLoad(pool="cpu", worker="b", state="ready")
    store.report(load)
    strange = store.keys.pool("cpu", "a")
    store.redis.set(strange, report)
    store.redis.sadd(store.keys.pools, strange)
    assert store.loads() == [load]


def test_a_processor_from_tomorrow_is_shown_and_not_used(redis_url, tmp_path):
    store = WorkerStore(redis_url, Keys("lockstep"))
    told = {"state": "ready", "model": "m", "total_blocks": 8, "free_blocks": 8, "capacity": 2}
    for processor in ("npu", "cpu"):
        store.report(PoolLoad(pool=processor, worker=f"w-{processor}-0", **told))
    assert [pool["pool"] for pool in look(store, tmp_path)["pools"]] == ["cpu", "npu"]
    assert [view.name for view in views_of(store.loads(), {}, "m")] == ["gpu", "cpu"]
