"""The README says what is so: its table of settings, its links, its make targets.

Its commands are run against a live node in tests/node, with what readme_blocks() finds.
"""

import re
import subprocess
from pathlib import Path

from pydantic_core import PydanticUndefined

from workers.settings import Settings

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def settings_table() -> str:
    """The configuration table as it must stand in the README."""
    rows = ["| variable | default | meaning |", "|---|---|---|"]
    for name, field in Settings.model_fields.items():
        assert field.default is not PydanticUndefined, name
        default = "" if field.default in (None, "") else f"`{field.default}`"
        rows.append(f"| `LOCKSTEP_{name.upper()}` | {default} | {field.description} |")
    return "\n".join(rows)


def test_the_table_of_settings_is_the_settings():
    begin = README.index("\n", README.index("<!-- settings:")) + 1
    end = README.index("<!-- end of settings -->")
    assert README[begin:end].strip() == settings_table(), "paste:\n" + settings_table()


def test_links_lead_somewhere():
    links = [link for link in re.findall(r"\]\(([^)]+)\)", README) if "://" not in link]
    assert links
    for link in links:
        assert (ROOT / link).exists(), link


def test_every_make_target_that_is_named_is_there():
    help_text = subprocess.run(["make"], cwd=ROOT, capture_output=True, text=True).stdout
    offered = set(re.findall(r"^make ([a-z-]+)", help_text, re.MULTILINE))
    named = set(re.findall(r"`(?:[A-Z_]+=\S+ )?make ([a-z-]+)", README)) | {"start"}
    assert named <= offered
    assert {"start", "build", "test", "bench", "bench-peers", "tidy", "clean"} <= offered


def test_every_setting_that_is_named_exists():
    known = {f"LOCKSTEP_{name.upper()}" for name in Settings.model_fields}
    assert set(re.findall(r"LOCKSTEP_[A-Z_]+", README)) <= known | {"LOCKSTEP_HOME"}
