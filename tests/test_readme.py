"""README and docs say what is so: the table of settings, links, make targets, commands.

What they have a reader run is run against a live node in tests/node/test_readme.py.
"""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest
from pydantic_core import PydanticUndefined

from ingest.command.main import COMMANDS
from workers.settings import Settings

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
ALL = "\n".join(page.read_text() for page in PAGES)
CONFIGURATION = (ROOT / "docs/configuration.md").read_text()


def settings_table() -> str:
    """The configuration table as it must stand in docs/configuration.md."""
    rows = ["| variable | default | meaning |", "|---|---|---|"]
    for name, field in Settings.model_fields.items():
        assert field.default is not PydanticUndefined, name
        default = "" if field.default in (None, "") else f"`{field.default}`"
        rows.append(f"| `LOCKSTEP_{name.upper()}` | {default} | {field.description} |")
    return "\n".join(rows)


def test_the_table_of_settings_is_the_settings():
    begin = CONFIGURATION.index("\n", CONFIGURATION.index("<!-- settings:")) + 1
    end = CONFIGURATION.index("<!-- end of settings -->")
    assert CONFIGURATION[begin:end].strip() == settings_table(), "paste:\n" + settings_table()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    links = [link for link in re.findall(r"\]\(([^)]+)\)", page.read_text()) if "://" not in link]
    for link in links:
        assert (page.parent / link.partition("#")[0]).exists(), link


def test_every_page_is_found_from_the_readme():
    links = re.findall(r"\]\((docs/[^)]+\.md)\)", (ROOT / "README.md").read_text())
    assert {ROOT / link for link in links} == set(PAGES[1:])


def test_every_command_that_is_named_exists():
    named = set(re.findall(r"(?m)(?:^|`|\$ |bin/)lockstep ([a-z]+)", ALL))
    assert named <= COMMANDS.keys() and len(named) >= 12


def test_every_make_target_that_is_named_is_there():
    help_text = subprocess.run(["make"], cwd=ROOT, capture_output=True, text=True).stdout
    offered = set(re.findall(r"^make ([a-z-]+)", help_text, re.MULTILINE))
    named = set(re.findall(r"`(?:[A-Z_]+=\S+ )?make ([a-z-]+)", ALL)) | {"start"}
    assert named <= offered
    assert {"start", "build", "test", "bench", "bench-peers", "tidy", "clean"} <= offered


def test_every_setting_that_is_named_exists():
    known = {f"LOCKSTEP_{name.upper()}" for name in Settings.model_fields}
    assert set(re.findall(r"LOCKSTEP_[A-Z_]+", ALL)) <= known | {"LOCKSTEP_HOME"}


def test_every_route_that_is_named_exists():
    """Names in capitals stand for anything; docs/api.md is made from the code."""
    routes = re.findall(r"(?m)^\| `([A-Z]+ /\S*)`", (ROOT / "docs/api.md").read_text())
    there = [re.compile(re.sub(r"\{[^}]+\}", "[^/]+", route)) for route in routes]
    named = set(re.findall(r"`((?:GET|POST|DELETE) /(?:v1/[^?`\s]+|\w*))[?`]", ALL))
    assert len(named) >= 20
    assert not {route for route in named if not any(one.fullmatch(route) for one in there)}


def test_settings_that_are_shown_are_taken():
    """Each `toml` block, as lockstep.toml."""
    blocks = re.findall(r"```toml\n(.*?)```", ALL, re.DOTALL)
    assert blocks
    for block in blocks:
        Settings(**tomllib.loads(block))


def test_the_nodes_of_the_page_about_fleets_are_of_one_fleet(monkeypatch, tmp_path):
    """Two blocks of settings, which a node reads, and which differ in the name alone."""
    page = (ROOT / "docs/fleet.md").read_text()
    blocks = re.findall(r"```ini\n(.*?)```", page, re.DOTALL)
    told = [dict(re.findall(r"(?m)^LOCKSTEP_(\w+)=(.+)$", block)) for block in blocks]
    monkeypatch.chdir(tmp_path)
    read = [Settings(**{name.lower(): value for name, value in one.items()}) for one in told]
    assert [one.node for one in read] == ["a", "b"]
    assert read[0].model_dump(exclude={"node"}) == read[1].model_dump(exclude={"node"})
    assert {"REDIS_URL", "WEBHOOK_SECRET", "MODEL"} <= told[0].keys()
