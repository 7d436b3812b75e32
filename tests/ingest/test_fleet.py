"""Two named nodes on one Redis: whoever looks at one sees both, and which of them takes no part."""

import json
from io import StringIO

import pytest
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console

from ingest.command.main import run
from ingest.command.top_screen import Speeds, screen
from ingest.dashboard.look import look
from ingest.fleet import seen_nodes, shares, shown_s
from tests.ingest.conftest import running
from tests.ingest.named_nodes import IDENTITY, NamedNode
from workers.settings import Settings
from workers.store import Store
from workers.wire import Keys

OTHER_WEIGHTS = IDENTITY.replace("0123456789abcdef", "ffff456789abcdef")


@pytest.fixture
def fleet(redis_url):
    """Nodes a and b: b has two pools and a request in a queue."""
    a, b = NamedNode(redis_url, "a"), NamedNode(redis_url, "b")
    a.report(running=1, tokens_per_s=10.0, free_blocks=60)
    b.report(running=3, tokens_per_s=20.0, free_blocks=16, step_ms=12.5)
    b.report("gpu", state="absent", note="no NVIDIA driver", capacity=0, total_blocks=0)
    b.store.redis.rpush(b.store.keys.queue("cpu@b"), "r1")
    a.say(speed=1.0, host="alpha")
    b.say(speed=3.0, host="beta")
    a.say(speed=1.0, host="alpha")  # it hears of b, and what its share is then
    return a, b


@pytest.fixture
def lockstep(monkeypatch, tmp_path, redis_url, capfd):
    """Runs a command of node a; gives its exit code and what it printed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LOCKSTEP_REDIS_URL", redis_url)
    monkeypatch.setenv("LOCKSTEP_NODE", "a")
    monkeypatch.setenv("COLUMNS", "80")
    from workers import settings

    settings.settings.cache_clear()

    def call(*arguments):
        code = run(list(arguments))
        return code, capfd.readouterr().out

    yield call
    settings.settings.cache_clear()


def samples(page: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


def nodes_in(found) -> set[str]:
    """Whose pools are told of."""
    return {dict(labels)["node"] for name, labels in found if name == "lockstep_pool_ready"}


def test_a_node_sees_all_nodes_with_their_pools_and_queues(fleet):
    a, b = seen_nodes(fleet[0].store)
    assert (a.name, a.state, b.name, b.state) == ("a", "ready", "b", "ready")
    assert [load.pool for load in b.loads] == ["cpu@b", "gpu@b"]
    assert b.queues == {"gpu@b": 0, "cpu@b": 1}
    assert [load.pool for load in fleet[0].store.loads()] == ["cpu@a"], "its own"


def test_a_node_that_is_alone_is_a_fleet_of_one(redis_url):
    store = Store(redis_url, Keys("lockstep"))
    [alone] = seen_nodes(store)
    assert (alone.name, alone.state, alone.trouble) == ("", "unready", "")


def test_a_named_node_sees_itself_before_its_router_has_begun(redis_url):
    node = NamedNode(redis_url, "a")
    node.report()
    [seen] = seen_nodes(node.store)
    assert (seen.name, seen.state) == ("a", "ready")


def test_other_weights_are_refused_and_named(fleet, redis_url, lockstep):
    NamedNode(redis_url, "c").say(identity=OTHER_WEIGHTS)
    c = seen_nodes(fleet[0].store)[2]
    assert c.state == "refused" and "ffff456789abcdef" in c.trouble
    code, out = lockstep("status")
    assert code == 0 and "c: takes no requests:" in out and "a ready, b ready, c refused" in out
    [told] = [node for node in json.loads(lockstep("status", "--json")[1])["nodes"]][2:]
    assert (told["name"], told["state"]) == ("c", "refused")


def test_a_share_is_of_those_that_take_part(fleet, redis_url):
    NamedNode(redis_url, "c").say(identity=OTHER_WEIGHTS, speed=4.0)
    seen = seen_nodes(fleet[0].store)
    assert shares(seen) == {"a": 0.25, "b": 0.75, "c": 0.0}
    assert shares(seen[2:]) == {"c": 1.0} and shares([]) == {}


def test_a_silent_node_is_told_from_one_that_is_gone(fleet):
    a, b = fleet
    b.fall_silent(8)
    assert seen_nodes(a.store)[1].state == "silent"
    b.fall_silent(3600)
    gone = seen_nodes(a.store)[1]
    assert gone.state == "gone" and gone.trouble.startswith("not heard for 60 min")


def test_a_node_that_was_stopped_says_so(fleet, lockstep):
    a, b = fleet
    b.say().leave()
    stopped = seen_nodes(a.store)[1]
    assert stopped.state == "stopped" and stopped.trouble.startswith("was stopped")
    assert "stopped" in lockstep("nodes")[1]


def test_nodes_prints_a_line_of_80_for_each(fleet, lockstep):
    code, out = lockstep("nodes")
    [a] = [line for line in out.splitlines() if line.startswith("a ")]
    [b] = [line for line in out.splitlines() if line.startswith("b ")]
    assert code == 0 and "1/4" in a and "25%" in a and "cpu" in a
    assert "3/4" in b and "16/64" in b and "cpu" in b
    told = json.loads(lockstep("nodes", "--json")[1])
    assert told["own"] == "a"
    assert [(node["name"], node["running"], node["queued"]) for node in told["nodes"]] == [
        ("a", 1, 0),
        ("b", 3, 1),
    ]


def test_a_node_that_is_gone_is_forgotten_and_no_other_one(fleet, lockstep):
    a, b = fleet
    assert lockstep("nodes", "--forget", "b")[0] == 1, "it lives"
    b.fall_silent(3600)
    assert lockstep("nodes", "--forget", "b")[0] == 1, "its queue is not empty"
    b.store.redis.delete(b.store.keys.queue("cpu@b"))
    assert lockstep("nodes", "--forget", "b")[0] == 0
    assert [node.name for node in seen_nodes(a.store)] == ["a"]
    assert lockstep("nodes", "--forget", "b")[0] == 1, "there is none"


def test_top_shows_the_own_pools_and_with_fleet_all_nodes(fleet, lockstep):
    own, whole = lockstep("top", "--once")[1], lockstep("top", "--once", "--fleet")[1]
    assert "node a" in own and "10.0 tok/s" in own and "3/4" not in own
    assert "2 nodes" in whole and "30.0 tok/s" in whole and "3/4" in whole
    told = json.loads(lockstep("top", "--json")[1])
    assert [pool["pool"] for pool in told["pools"]] == ["cpu@a"]
    assert [pool["processor"] for pool in told["nodes"][1]["pools"]] == ["gpu", "cpu"]


def test_what_runs_elsewhere_is_shown_of_a_fleet_alone(fleet, tmp_path):
    a, b = fleet
    b.store.redis.zadd(b.store.keys.wip("cpu@b"), {"r9:e1": 2e9})
    b.store.redis.hset(
        b.store.keys.job("r9"),
        mapping={"status": "running", "sla": "batch", "pool": "cpu@b", "plan": "cpu"},
    )
    assert look(a.store, tmp_path)["running"] == []
    told = look(a.store, tmp_path, fleet=True)
    assert [job["full_id"] for job in told["running"]] == ["r9"]
    console = Console(width=100, record=True, file=StringIO())
    console.print(screen(told, Speeds(), fleet=True))
    assert "cpu b" in console.export_text()


def test_metrics_of_one_node_tell_of_all(fleet, tiny_home, redis_url, free_port):
    settings = Settings(
        home=tiny_home, redis_url=redis_url, model="tiny", port=free_port(), node="a"
    )
    with running(settings) as door:
        found = samples(door.http.get("/metrics").text)
        alone = samples(door.http.get("/metrics?fleet=false").text)
    where = ("pool", "cpu"), ("worker", "homeb-cpu@b-0")
    assert found["lockstep_num_requests_running", (("node", "b"), *where)] == 3
    assert found["lockstep_num_requests_waiting", (("node", "b"), ("queue", "cpu"))] == 1
    assert found["lockstep_node_up", (("node", "b"),)] == 1
    assert found["lockstep_node_requests_per_second", (("node", "b"),)] == 3
    assert (nodes_in(found), nodes_in(alone)) == ({"a", "b"}, {"a"})
    assert ("lockstep_node_up", (("node", "b"),)) in alone, "a fleet's members are always told"


def test_a_node_that_is_alone_has_no_label_and_no_members(door, node):
    node.report()
    page = door.http.get("/metrics").text
    assert "node=" not in page and "lockstep_node_" not in page
    [alone] = door.http.get("/v1/node").json()["nodes"]
    assert alone["name"] == ""


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(3, "3 s"), (119, "119 s"), (120, "2 min"), (7200, "2 h"), (2e6, "23 days")],
)
def test_silence_is_told_in_words(seconds, words):
    assert shown_s(seconds) == words
