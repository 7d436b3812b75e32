"""Two nodes with homes of their own: a session goes on where its files are not, with the same bits.

The first node ends, or keeps old files; the second has the object store, or the token log in Redis.
"""

import shutil

import pytest

from ingest.command.main import run
from kv_tier.remote.bucket import Bucket
from kv_tier.remote.places import version_in
from tests.kv_tier.remote import s3_server
from tests.workers.queue.conftest import stop_all
from tests.workers.session.conftest import LONG, Pools
from workers.settings import settings

ON_A, ON_B = {"pool": "cpu@a"}, {"pool": "cpu@b"}


class Fleet:
    """Nodes a and b. Without a store they have the token log alone."""

    def __init__(self, redis_url, folder, tiny_home, model):
        self.url = f"file://{folder}/shared"
        if s3_server.PYTHON:
            self.url = f"s3://{s3_server.BUCKET}/{folder.name}"
        self.a, self.b = (self.home(redis_url, folder / name, tiny_home, model) for name in "ab")

    def home(self, redis_url, home, tiny_home, model):
        home.mkdir()
        (home / "models").symlink_to(tiny_home / "models")
        return Pools(redis_url, home, model)

    def start(self, name, *, store=True):
        more = {"LOCKSTEP_KV_STORE_URL": self.url, "LOCKSTEP_KV_STORE_IDLE_S": "1"} if store else {}
        pools = {"a": self.a, "b": self.b}[name]
        return pools.start(LOCKSTEP_NODE=name, **more)

    def in_store(self, session="s"):
        """Version of its manifest there, once all of it was sent; None: not yet."""
        found = [
            version_in(one.name) for one in Bucket(self.url).list(f"sessions/default/{session}")
        ]
        return max(found, default=None)

    def until_sent(self, pools, session="s"):
        """What the node has of it is in the store."""
        pools.until_written(session)

        def is_sent():
            head = pools.sessions.head("default", session)
            return self.in_store(session) == (head.fence, head.generation)

        pools.node.until(is_sent, 60)


@pytest.fixture(scope="module")
def environment(free_port):
    """What finds the object store: a folder, or with make test-objects a server that speaks S3."""
    if not s3_server.PYTHON:
        yield {}
    else:
        with s3_server.running(free_port()) as told:
            yield told


@pytest.fixture
def fleet(redis_url, tmp_path, tiny_home, model, environment, monkeypatch):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    fleet = Fleet(redis_url, tmp_path, tiny_home, model)
    yield fleet
    stop_all(fleet.a.started + fleet.b.started)


@pytest.fixture
def tool(fleet, monkeypatch):
    """The lockstep command on a node; its exit code."""

    def on(name, *words):
        pools = {"a": fleet.a, "b": fleet.b}[name]
        monkeypatch.setenv("LOCKSTEP_HOME", str(pools.home))
        monkeypatch.setenv("LOCKSTEP_REDIS_URL", pools.node.url)
        monkeypatch.setenv("LOCKSTEP_NODE", name)
        monkeypatch.setenv("LOCKSTEP_MODEL", pools.model)
        monkeypatch.setenv("LOCKSTEP_KV_STORE_URL", fleet.url)
        settings.cache_clear()
        return run(list(words))

    yield on
    settings.cache_clear()


def log_of(pools, session="s"):
    return list(pools.sessions.head("default", session).token_ids)


def test_a_session_moves_through_the_object_store_bit_for_bit_and_without_a_prefill(fleet, judge):
    a = fleet.start("a")
    fleet.a.say("r1", LONG, **ON_A)
    fleet.a.say("r2", "And then?", **ON_A)
    fleet.until_sent(fleet.a)
    before = log_of(fleet.a)
    fleet.a.kill(a)
    shutil.rmtree(fleet.a.home)
    fleet.start("b")
    job = fleet.b.say("r3", "Go on.", **ON_B)
    assert fleet.b.request("r3").token_ids[: len(before)] == tuple(before)
    assert job["cached_tokens"] == len(before) - 1
    assert judge.agrees(fleet.b, "r3")


@pytest.mark.parametrize("model", ["tiny_llama"])
def test_a_session_whose_node_is_gone_goes_on_from_the_token_log(fleet, judge):
    a = fleet.start("a", store=False)
    fleet.a.say("r1", LONG, **ON_A)
    before = log_of(fleet.a)
    fleet.a.kill(a)
    shutil.rmtree(fleet.a.home)
    fleet.start("b", store=False)
    job = fleet.b.say("r2", "Go on.", **ON_B)
    assert fleet.b.request("r2").token_ids[: len(before)] == tuple(before)
    assert job["cached_tokens"] == 0 and judge.agrees(fleet.b, "r2")


@pytest.mark.parametrize("model", ["tiny_llama"])
def test_a_node_that_comes_back_with_old_files_goes_on_where_the_other_one_ended(fleet, judge):
    """And its KV is of use: what both have in common is not computed again."""
    fleet.start("a", store=False)
    fleet.start("b", store=False)
    fleet.a.say("r1", LONG, **ON_A)
    fleet.a.until_written()
    old = log_of(fleet.a)
    fleet.b.say("r2", "And then?", **ON_B)
    fleet.b.say("r3", "And what then?", **ON_B)
    fleet.b.until_written()
    new = log_of(fleet.b)
    job = fleet.a.say("r4", "Go on.", **ON_A)
    assert fleet.a.request("r4").token_ids[: len(new)] == tuple(new)
    assert job["cached_tokens"] >= len(old) - 1 and judge.agrees(fleet.a, "r4")
    job = fleet.b.say("r5", "The end?", **ON_B)
    assert fleet.b.request("r5").token_ids[: len(log_of(fleet.a))] == tuple(log_of(fleet.a))
    assert judge.agrees(fleet.b, "r5")


@pytest.mark.parametrize("model", ["tiny_llama"])
def test_what_one_node_deletes_no_other_one_brings_back(fleet, tool):
    fleet.start("a")
    fleet.a.say("r1", LONG, **ON_A)
    fleet.until_sent(fleet.a)
    assert tool("b", "session", "rm", "s") == 0
    assert fleet.in_store() is None
    fleet.a.say("r2", "Hello", **ON_A)
    said = fleet.a.sessions.head("default", "s").messages
    assert [message.content for message in said[::2]] == ["Hello"]


@pytest.mark.parametrize("model", ["tiny_llama"])
def test_sessions_are_sent_and_fetched_by_hand_before_a_node_is_taken_away(fleet, tool, judge):
    a = fleet.start("a", store=False)
    fleet.a.say("r1", LONG, **ON_A)
    fleet.a.until_written()
    assert tool("a", "session", "push", "s") == 0
    assert tool("a", "session", "fork", "s", "branch") == 0
    assert tool("a", "session", "push", "--all", "--json") == 0
    assert tool("b", "session", "fork", "s", "branch") != 0  # b has no "s", and a has "branch"
    fleet.a.kill(a)
    assert tool("b", "session", "pull", "s") == 0
    assert log_of(fleet.b) == log_of(fleet.a)
    assert tool("b", "session", "pull", "nobody") != 0
    fleet.start("b")
    job = fleet.b.say("r2", "Go on.", **ON_B)
    assert job["cached_tokens"] == len(log_of(fleet.a)) - 1 and judge.agrees(fleet.b, "r2")
    job = fleet.b.say("r3", "Or else?", session="branch", **ON_B)
    assert job["cached_tokens"] >= len(log_of(fleet.a)) - 1 and judge.agrees(fleet.b, "r3")
