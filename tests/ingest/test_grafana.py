"""The Grafana dashboard asks for nothing that /metrics does not have, and for all that matters."""

import json
import re
from pathlib import Path

import pytest

from ingest.fleet import SeenNode
from ingest.health.programs import Program
from ingest.health.pulse import Pulse
from ingest.metrics.kv import NAMES
from ingest.metrics.registry import Metrics
from workers.cost import CostModel
from workers.fleet.presence import NodeReport
from workers.wire import PoolLoad

BOARD = json.loads((Path(__file__).parents[2] / "docs" / "grafana" / "lockstep.json").read_text())
PANELS = [panel for panel in BOARD["panels"] if panel["type"] != "row"]
QUERIES = [(panel["title"], t["expr"]) for panel in PANELS for t in panel["targets"]]
WORDS = re.compile(r"lockstep_[a-z0-9_]+")


@pytest.fixture(scope="module")
def page() -> str:
    """/metrics of a fleet's node that has everything."""
    kv = dict.fromkeys(NAMES, 1.0)
    load = PoolLoad(pool="cpu@a", worker="w", state="ready", kv=kv, cost=CostModel(fixed_ms=1))
    sla = ("standard", "kept")
    pulse = Pulse(
        streams={"standard": 1}, queues={"cpu@a": 0}, loads=[load], num_routers=1,
        ends={sla: 1}, promises={sla: 1}, placements={("cpu", "room"): 1}, refusals={"late": 1},
    )  # fmt: skip
    seen = SeenNode(NodeReport(node="a"), 0.0, 15.0, (load,), {"cpu@a": 0})
    metrics = Metrics(node="a")
    metrics.programs.programs = [Program(name="api", state="running", keeper=1)]
    disk = {"sessions": 1.0, "bytes": 2.0, "quota_bytes": 4.0}
    return metrics.page(pulse, 0, disk, [seen]).decode()


@pytest.fixture(scope="module")
def names(page) -> set[str]:
    """All names of samples that the page may have."""
    found = set()
    for name, kind in re.findall(r"^# TYPE (\S+) (\w+)$", page, re.MULTILINE):
        ends = ("_bucket", "_sum", "_count") if kind == "histogram" else ("",)
        found |= {name + end for end in ends}
    return found


@pytest.mark.parametrize(("title", "query"), QUERIES)
def test_a_query_names_what_there_is(title, query, names):
    asked = set(WORDS.findall(query))
    assert asked and asked <= names, asked - names


def test_a_histogram_is_on_the_board_or_it_is_of_no_use(names):
    shown = {word for _, query in QUERIES for word in WORDS.findall(query)}
    histograms = {name for name in names if name.endswith("_bucket")}
    lengths = {"lockstep_request_prompt_tokens", "lockstep_request_generation_tokens"}
    lengths |= {"lockstep_step_batch_size"}  # of these the mean is shown
    assert {name for name in histograms - shown if name[:-7] not in lengths} == set()


def test_the_page_about_metrics_names_what_there_is(names):
    page = (Path(__file__).parents[2] / "docs" / "observing.md").read_text()
    families = {re.sub(r"_(bucket|sum|count)$", "", name) for name in names} | names
    told = set(re.findall(r"`(lockstep_[a-z0-9_]+)`", page))
    assert told and told <= families, told - families


# What each process counts for itself; all else any node of a fleet tells, whichever is scraped.
OWN = re.compile(r"lockstep_(open_streams|disconnects|requests_accepted|program_|kv_disk_)")


@pytest.mark.parametrize(("title", "query"), QUERIES)
def test_what_every_node_tells_is_counted_once(title, query):
    for found in WORDS.finditer(query):
        before = query[: found.start()]
        once = re.search(r"max without \(instance, pod\) \((rate\(|increase\()?$", before)
        assert bool(once) != bool(OWN.match(found[0])), found[0]


def test_panels_say_what_they_are_and_do_not_overlap():
    assert all(panel["description"] and panel["title"] for panel in PANELS)
    places = {(p["gridPos"]["x"], p["gridPos"]["y"]) for p in BOARD["panels"]}
    assert len(places) == len(BOARD["panels"])
    assert len({p["id"] for p in BOARD["panels"]}) == len(BOARD["panels"])
