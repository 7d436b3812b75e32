"""Sessions that rest go to the object store, once; a store that is away holds nothing up."""

import pytest

from kv_tier.remote.bucket import Bucket, StoreError
from kv_tier.remote.places import version_of
from kv_tier.remote.pull import versions
from kv_tier.remote.sweep import Swept
from kv_tier.tier import wall_ms
from tests.kv_tier.remote.homes import TENANT, Home, Shaky
from tests.workers.session.fakes import FakeStore
from workers.session.exporter import Exporter

LOG = range(100, 800)


class Store(FakeStore):
    """One session's hash, and turns that are ours or not."""

    def __init__(self):
        super().__init__()
        self.turns = []

    def takes_turn(self, what, seconds):
        self.turns.append(what)
        return len(self.turns) == 1


@pytest.fixture
def bucket(tmp_path):
    return Shaky(Bucket(f"file://{tmp_path}/shared"))


@pytest.fixture
def home(tmp_path, bucket):
    home = Home(tmp_path / "home", bucket)
    home.now_ms = wall_ms()
    yield home
    home.close()


@pytest.fixture
def exporter(home):
    return Exporter(Store(), home.remote, idle_s=30)


def there(home, session="s"):
    return versions(home.remote.bucket, TENANT, session)


def test_a_session_is_sent_when_it_rests_and_again_when_it_was_used(home, exporter):
    said = home.say("s", LOG)
    exporter.export()
    assert there(home) == []
    home.now_ms += 31_000
    exporter.export()
    assert there(home) == [version_of(said)]
    home.now_ms += 1000
    again = home.say("s", range(100, 900))
    exporter.export()
    assert there(home) == [version_of(said)]
    home.now_ms += 31_000
    exporter.export()
    assert there(home) == [version_of(again)]


def test_what_was_sent_is_not_looked_at_again(home, exporter, bucket):
    home.say("s", LOG)
    home.now_ms += 31_000
    exporter.export()
    bucket.calls.clear()
    exporter.export()
    assert bucket.calls == []


def test_a_state_that_is_committed_late_is_sent_too(home, exporter):
    """Its generation is a new one, the time of its use is the turn's."""
    said = home.say("s", LOG)
    home.now_ms += 31_000
    exporter.export()
    now_ms, home.now_ms = home.now_ms, said.used_ms
    later = home.say("s", LOG)
    home.now_ms = now_ms + 1000
    exporter.export()
    assert there(home) == [version_of(later)]


@pytest.mark.parametrize("noted", [{"committed": 9}, {"dropped": 9}])
def test_what_is_another_nodes_by_now_or_was_deleted_is_not_sent(home, exporter, noted):
    home.say("s", LOG)
    exporter.store.hash |= noted
    home.now_ms += 31_000
    exporter.export()
    assert there(home) == []


def test_when_the_node_stops_all_is_sent_at_once(home, exporter):
    home.say("s", LOG)
    exporter.hurry()
    home.now_ms += 1
    exporter.export()
    assert len(there(home)) == 1


def test_a_store_that_fails_is_asked_again_later_and_nothing_is_forgotten(home, exporter, bucket):
    home.say("s", LOG)
    home.now_ms += 31_000
    bucket.fails = {"put", "list", "get"}
    with pytest.raises(StoreError):
        exporter.export()
    bucket.fails = set()
    exporter.export()
    assert len(there(home)) == 1


def test_one_that_may_not_be_sent_holds_no_other_up(home, exporter, bucket):
    home.remote.tenant_bytes = 30_000
    home.say("large", LOG)
    home.now_ms += 1
    home.say("small", range(20))
    home.now_ms += 31_000
    exporter.export()
    assert there(home, "large") == [] and len(there(home, "small")) == 1
    bucket.calls.clear()
    exporter.export()
    assert bucket.calls == []


def test_a_thread_whose_store_is_away_goes_on_and_ends_when_it_is_told(home, exporter, bucket):
    home.say("s", LOG)
    exporter.hurry()
    bucket.fails = {"put", "get", "list", "head", "delete"}
    home.now_ms += 1
    exporter.start()
    while not home.remote.stats()["store_failures"]:
        exporter.join(0.01)
    bucket.fails = set()
    exporter.woken.set()
    while not there(home):
        exporter.join(0.01)
    exporter.end()
    exporter.join(30)
    assert not exporter.is_alive()


def test_one_process_of_a_node_does_it(home, exporter):
    other = Exporter(Store(), home.remote, idle_s=30)
    with exporter.alone() as ours, other.alone() as theirs:
        assert ours and not theirs
    with other.alone() as theirs:
        assert theirs


def test_one_node_of_a_fleet_sweeps_once_a_day(home, exporter, monkeypatch):
    swept = []

    def sweep(remote, **told):
        swept.append(told)
        return Swept()

    monkeypatch.setattr("workers.session.exporter.sweep", sweep)
    exporter.tidy()
    assert not exporter.store.turns
    exporter.sweep_at = 0
    exporter.tidy()
    exporter.tidy()
    assert len(swept) == 1 and exporter.store.turns == ["kv-sweep"]
    exporter.sweep_at = 0
    exporter.tidy()
    assert len(swept) == 1 and len(exporter.store.turns) == 2
    exporter.store.hash["dropped"] = 5
    is_deleted = swept[0]["is_deleted"]
    assert is_deleted(TENANT, "s", 5) and not is_deleted(TENANT, "s", 6)


def test_a_node_that_stops_waits_until_what_it_committed_last_is_sent(home, exporter):
    exporter.start()
    home.say("s", LOG)
    home.now_ms += 1
    while not exporter.finish(0.05):
        pass
    assert len(there(home)) == 1
    exporter.end()
    exporter.join(30)


def test_a_store_that_is_away_holds_no_stop_up(home, exporter, bucket):
    home.say("s", LOG)
    home.now_ms += 1
    bucket.fails = {"put", "get", "list", "head"}
    exporter.start()
    while not exporter.finish(0.05):
        pass
    assert home.remote.stats()["store_failures"] >= 1
    exporter.end()
    exporter.join(30)
