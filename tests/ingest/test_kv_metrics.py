"""/metrics of KV: every number that a pool tells, with its tier; the folder, as it is."""

import pytest
from prometheus_client.parser import text_string_to_metric_families

from ingest.health.pulse import Pulse
from ingest.metrics.kv import DISK, NAMES
from ingest.metrics.registry import Metrics
from kv_tier.counters import NAMES as COUNTED
from tests.ingest.kept_sessions import keep, tier_at
from workers.wire import PoolLoad


def samples(page):
    """{(name, tier): value}, of one pool."""
    return {
        (sample.name, sample.labels.get("tier")): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name.startswith("lockstep_kv_")
    }


def page_of(kv, disk=None):
    load = PoolLoad(pool="cpu", worker="w1", state="ready", kv=kv)
    pulse = Pulse(streams={}, queues={}, loads=[load], num_routers=1)
    return Metrics().page(pulse, 0, disk or {}).decode()


@pytest.mark.parametrize("name", NAMES)
def test_every_number_of_a_pool_is_shown(name):
    told = NAMES[name]
    suffix = "_total" if told.is_counter else ""
    expected = {(f"lockstep_kv_{told.metric}{suffix}", told.tier or None): 7.0}
    assert samples(page_of({name: 7.0})) == expected


def test_whatever_the_tier_counts_has_a_name_here():
    assert set(COUNTED) <= NAMES.keys()


def test_tiers_stand_beside_each_other():
    found = samples(page_of({"tokens_ram": 1.0, "tokens_disk": 3.0}))
    name = "lockstep_kv_hit_tokens_total"
    assert found == {(name, "ram"): 1.0, (name, "disk"): 3.0}


def test_a_number_without_a_name_here_is_shown_as_it_is():
    assert samples(page_of({"new_thing": 2.0, "odd name": 1.0})) == {
        ("lockstep_kv_new_thing", None): 2.0
    }


def test_what_is_the_folders_is_not_a_pools():
    assert samples(page_of({"bytes": 5.0, "sessions": 1.0})) == {}


def test_pools_are_told_apart():
    loads = [PoolLoad(pool="cpu", worker=w, state="ready", kv={"hits": 1.0}) for w in "ab"]
    pulse = Pulse(streams={}, queues={}, loads=loads, num_routers=1)
    page = Metrics().page(pulse, 0, {}).decode()
    assert page.count("lockstep_kv_hits_total{") == 2
    assert page.count("# TYPE lockstep_kv_hits_total") == 1


def test_the_folder_is_shown_as_it_is(door, tmp_path):
    (tmp_path / "kv").mkdir()
    tier = tier_at(tmp_path)
    door.desk.settings = door.desk.settings.model_copy(update={"home": tmp_path})
    door.desk._tier = tier
    keep(tier, "talk")
    found = samples(door.http.get("/metrics").text)
    assert {f"lockstep_kv_disk_{name}" for name in DISK} == {name for name, _ in found}
    assert found["lockstep_kv_disk_sessions", None] == 1
    assert found["lockstep_kv_disk_objects", None] == 4
    assert found["lockstep_kv_disk_free_bytes", None] > 0
    tier.close()


def test_a_folder_that_cannot_be_read_does_not_take_the_page_along(door, tmp_path):
    (tmp_path / "kv").mkdir()
    (tmp_path / "kv" / "salt").mkdir()
    door.desk.settings = door.desk.settings.model_copy(update={"home": tmp_path})
    response = door.http.get("/metrics")
    assert response.status_code == 200 and "lockstep_kv_disk_bytes" not in response.text


def test_without_sessions_nothing_is_opened(door, tmp_path):
    door.desk.settings = door.desk.settings.model_copy(update={"home": tmp_path})
    assert door.http.get("/metrics").status_code == 200
    assert door.desk._tier is None
