"""What is imported is what was built from the sources as they are now.

A compiled module beside its .py wins the import, and a stale one hides every edit; so does a stale
extension.
"""

import hashlib
import importlib
import json
import os
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PURE = bool(os.environ.get("PURE"))
HASHES = json.loads((ROOT / "kernels/cpu/build_hash.json").read_text())
HOST_CODE = [
    "kernels/cpu/host.py",
    "workers/engine/scheduler.py",
    "workers/engine/places.py",
    "workers/engine/patience.py",
    "workers/engine/shortage.py",
    "workers/engine/line.py",
    "workers/engine/pace.py",
    "workers/engine/chunks.py",
    "workers/engine/cost.py",
    "workers/engine/batch.py",
    "workers/engine/sequence.py",
    "workers/engine/sampler.py",
    "kv_tier/block_pool.py",
]


def current(path: str) -> str:
    return hashlib.sha256((ROOT / path).read_bytes()).hexdigest()


def test_the_extension_is_built_from_the_sources_as_they_are():
    stale = [path for path, digest in HASHES["extension"].items() if current(path) != digest]
    assert not stale, f"run make build: {stale} changed since"
    sources = {*(ROOT / "kernels/cpu").glob("*.c"), *(ROOT / "kernels/cpu").glob("*.h")}
    assert {str(p.relative_to(ROOT)) for p in sources} == set(HASHES["extension"])


def test_the_compiled_modules_are_built_from_the_sources_as_they_are():
    stale = [path for path, digest in HASHES["compiled"].items() if current(path) != digest]
    assert not stale, f"run make build: {stale} changed since"


@pytest.mark.parametrize("path", HOST_CODE)
def test_the_imported_module_is_the_one_asked_for(path):
    """Compiled after a compiled build, the .py itself after PURE=1."""
    module = importlib.import_module(path.removesuffix(".py").replace("/", "."))
    is_compiled = module.__file__.endswith(".so")
    assert is_compiled == (path in HASHES["compiled"]), module.__file__
    if PURE:
        assert not is_compiled, module.__file__


def test_a_compiled_build_compiled_all_host_code():
    if HASHES["compiled"]:
        assert set(HOST_CODE) == set(HASHES["compiled"])
