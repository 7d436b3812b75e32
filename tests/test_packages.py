"""What is installed is what is here: pyproject.toml names every folder that holds our code."""

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("ingest", "router", "workers", "kernels", "kv_tier")


def test_every_folder_of_code_is_installed():
    named = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    files = [p.relative_to(ROOT) for folder in FOLDERS for p in (ROOT / folder).rglob("*.py")]
    there = {".".join(path.parent.parts) for path in files if "build" not in path.parts}
    assert there == set(named)
    assert len(named) == len(there), "each is named once"
