"""DESIGN.md names what is there: its links, its files, and the functions it enters them by."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DESIGN = (ROOT / "DESIGN.md").read_text()
LINKS = re.findall(r"\]\(([^)]+)\)", DESIGN)
SCRIPTS = re.findall(r"`(\w+\.lua)`", DESIGN)
# `folder/file.py`, `folder/file.py : function`, `folder/file.py argument`; OP stands for any name
FILES = re.findall(r"`([a-z_]+/[a-z_/]+\.\w+)(?: : (\w+))?[^`]*`", DESIGN)


@pytest.mark.parametrize("path", LINKS)
def test_a_link_leads_somewhere(path):
    assert (ROOT / path).is_file()


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_is_there(name):
    assert (ROOT / "workers" / "lua" / name).is_file()


@pytest.mark.parametrize(("path", "function"), FILES)
def test_a_file_is_entered_where_it_says(path, function):
    text = (ROOT / path).read_text()
    assert not function or re.search(rf"def {function}\(", text)


def test_the_journey_is_found():
    assert len(FILES) > 30 and len(SCRIPTS) > 5 and LINKS
