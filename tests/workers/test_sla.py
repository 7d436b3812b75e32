"""Classes of service: the defaults, what settings change, and every setting that is none."""

import re

import pytest

from workers.settings import Settings
from workers.sla import BadClass, SlaTable
from workers.wire import SLA_CLASSES


def test_three_classes_exist_always_most_urgent_first():
    assert SlaTable().names == SLA_CLASSES
    assert SlaTable.of({}).names == SLA_CLASSES


def test_a_setting_changes_only_what_it_names():
    table = SlaTable.of({"realtime": {"ttft_ms": 500}})
    assert (table["realtime"].ttft_ms, table["realtime"].tpot_ms) == (500, 100)
    assert table["standard"] == SlaTable()["standard"]


def test_a_class_is_added_by_name_and_takes_the_rest_from_another_one():
    table = SlaTable.of({"nightly": {"like": "batch", "deadline_ms": 28_800_000}})
    assert table.names == (*SLA_CLASSES, "nightly")
    assert table["nightly"].handicap_ms == table["batch"].handicap_ms
    assert table["nightly"].deadline_ms == 28_800_000


def test_a_class_without_another_one_is_like_standard():
    assert SlaTable.of({"mine": {}})["mine"].ttft_ms == SlaTable()["standard"].ttft_ms


def test_order_is_by_handicap():
    table = SlaTable.of({"first": {"handicap_ms": 0, "weight": 9}, "last": {"handicap_ms": 10**9}})
    assert table.names == ("first", *SLA_CLASSES, "last")
    assert table.more_urgent("first", "realtime") and not table.more_urgent("batch", "standard")


def test_zero_takes_a_promise_back():
    assert SlaTable.of({"batch": {"deadline_ms": 0}})["batch"].deadline_ms is None


def test_a_class_that_only_another_node_knows_is_the_least_urgent():
    assert SlaTable()["unheard"].name == "batch"


def test_handicaps_are_longer_than_what_is_promised():
    """So that nobody's broken promise breaks those of more urgent classes."""
    for sla in SlaTable():
        assert sla.name == "realtime" or sla.handicap_ms > (sla.ttft_ms or sla.deadline_ms)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"batch": {"ttft": 1}}, "batch.ttft: there is no such key; known are weight, "),
        ({"batch": {"ttft_ms": -1}}, "batch.ttft_ms: must be an integer from 1 to "),
        (
            {"batch": {"ttft_ms": 0.0}},
            "batch.ttft_ms: must be an integer from 1 to 2592000000, or 0 for no promise, got 0.0",
        ),
        ({"batch": {"weight": True}}, "batch.weight: must be an integer from 1 to 1000, got True"),
        ({"batch": {"attainment": 2}}, "batch.attainment: must be a number above 0 and at most 1"),
        ({"batch": {"attainment": "x"}}, "batch.attainment: must be a number above 0"),
        ({"x": {"like": "y"}}, "x.like: must be one of realtime, standard, batch, got 'y'"),
        ({"x": {"like": ["batch"]}}, "x.like: must be one of realtime, standard, batch, got ['ba"),
        ({"X": {}}, "X: a class is named by a-z, 0-9 and _, a letter first"),
        ({"x": 3}, "x: must be a table, [sla.x]"),
        ({f"c{n}": {} for n in range(20)}, "at most 16 classes, got 23"),
    ],
)
def test_what_is_no_class_is_one_sentence(given, sentence):
    with pytest.raises(BadClass, match="^" + re.escape(sentence)):
        SlaTable.of(given)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "must be JSON in a variable: "),
        ("[1]", "must be a table of classes, [sla.NAME], got [1]"),
        ('{"batch": {"weight": 0}}', "batch.weight: must be an integer from 1 to 1000, got 0"),
    ],
)
def test_a_bad_variable_is_one_sentence_too(monkeypatch, text, sentence):
    monkeypatch.setenv("LOCKSTEP_SLA", text)
    with pytest.raises(ValueError) as caught:
        Settings()
    [error] = caught.value.errors()
    assert (error["loc"], error["msg"].startswith(sentence)) == (("sla",), True)


def test_the_table_of_the_settings_is_read_from_file_and_variable(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lockstep.toml").write_text('[sla.nightly]\nlike = "batch"\n')
    assert Settings().classes.names == (*SLA_CLASSES, "nightly")
    monkeypatch.setenv("LOCKSTEP_SLA", '{"mine": {}}')
    assert "mine" in Settings().classes
