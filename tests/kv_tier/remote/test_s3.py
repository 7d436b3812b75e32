"""The same over HTTP, with a server that speaks S3: moto's, in an environment of its own."""

import time

import pytest

from kv_tier.remote.bucket import Bucket, IsThere, NotThere, StoreError
from kv_tier.remote.pull import newest, pull
from kv_tier.remote.push import push
from kv_tier.remote.sweep import forget, sweep
from tests.kv_tier.remote import s3_server
from tests.kv_tier.remote.homes import SIZES, TENANT, as_pulled, replace_byte

pytestmark = pytest.mark.skipif(not s3_server.PYTHON, reason="make test-objects brings the server")
LOG = range(100, 800)


@pytest.fixture(scope="module")
def environment(free_port):
    with s3_server.running(free_port()) as told:
        yield told


@pytest.fixture
def bucket(environment, monkeypatch, request):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    return Bucket(f"s3://{s3_server.BUCKET}/a fleet/{request.node.name}")


def test_one_object(bucket):
    bucket.put("salt", [b"one"], new=True)
    with pytest.raises(IsThere):
        bucket.put("salt", [b"two"], new=True)
    assert bytes(bucket.get("salt")) == b"one"
    found = bucket.head("salt")
    assert (found.name, found.num_bytes) == ("salt", 3)
    assert abs(found.changed_ms - time.time() * 1000) < 60_000
    bucket.delete("salt")
    bucket.delete("salt")
    with pytest.raises(NotThere):
        bucket.get("salt")
    with pytest.raises(NotThere):
        bucket.head("salt")


def test_one_in_parts(bucket):
    data = bytes(range(256)) * (70 << 12)
    assert bucket.put("state", [data[:100], memoryview(data)[100:]]) == len(data) > 64 << 20
    assert bucket.get("state") == data


def test_more_than_one_page_of_a_list(bucket):
    for number in range(30):
        bucket.put(f"objects/{number}", [b"x"])
    assert len(list(bucket.list("objects"))) == 30
    assert list(bucket.list("object")) == []


def test_a_session_goes_there_and_comes_back(bucket, homes):
    one, other = homes
    said = one.say("s", LOG)
    assert push(one.remote, TENANT, "s").sent == 4
    found = newest(other.remote, TENANT, "s")
    assert found == as_pulled(said, other)
    assert pull(other.remote, found, SIZES).fetched == other.holds(found) == 4
    assert sweep(other.remote).objects == 0
    forget(other.remote, TENANT, "s")
    assert newest(one.remote, TENANT, "s") is None


def test_damage_there_is_found_here(bucket, homes):
    one, other = homes
    one.say("s", LOG)
    push(one.remote, TENANT, "s")
    place = max(found.name for found in bucket.list("objects"))
    bucket.put(place, [replace_byte(bytes(bucket.get(place)), 4500, 1)])
    found = newest(other.remote, TENANT, "s")
    pull(other.remote, found, SIZES)
    assert other.holds(found) == 3


def test_a_bucket_that_is_not_there_is_no_missing_object(bucket):
    with pytest.raises(StoreError, match="there is no such bucket"):
        Bucket("s3://nobody/x").get("salt")


def test_a_server_that_is_not_there_is_a_store_error(bucket, monkeypatch, free_port):
    monkeypatch.setenv("AWS_ENDPOINT", f"http://127.0.0.1:{free_port()}")
    with pytest.raises(StoreError, match="get salt"):
        Bucket("s3://lockstep/x").get("salt")


def test_plain_http_is_refused_unless_it_is_allowed(bucket, monkeypatch):
    monkeypatch.setenv("AWS_ALLOW_HTTP", "false")
    with pytest.raises(StoreError):
        Bucket("s3://lockstep/x").get("salt")
