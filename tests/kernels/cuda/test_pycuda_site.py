"""A PyCUDA that cannot be built is one line; what is built is whole or not there."""

import sys

import pytest

from kernels.cuda.emulate import pycuda_site
from kernels.cuda.emulate.pycuda_site import NoPyCuda, site


@pytest.fixture
def elsewhere(monkeypatch, tmp_path):
    """As on a machine without any PyCUDA, with an empty cache."""
    monkeypatch.setattr(pycuda_site, "find_spec", lambda name: None)
    monkeypatch.setattr(pycuda_site, "cache_folder", lambda: tmp_path)
    return tmp_path


def test_a_build_that_fails_says_what_failed_and_leaves_nothing(elsewhere, monkeypatch):
    monkeypatch.setattr(pycuda_site, "_pip", lambda *arguments: pycuda_site._run(
        sys.executable, "-c", "import sys; sys.exit('no network here')"
    ))  # fmt: skip
    with pytest.raises(NoPyCuda, match="no network here"):
        site()
    assert [path.suffix for path in elsewhere.iterdir()] == [".lock"]


def test_a_missing_program_is_named():
    with pytest.raises(NoPyCuda, match="no-such-compiler is not installed"):
        pycuda_site._run("no-such-compiler", "-c")


def test_what_is_built_is_not_built_again(elsewhere, monkeypatch):
    built = []

    def build(aside):
        built.append(aside)
        (aside / "site").mkdir()

    monkeypatch.setattr(pycuda_site, "_build", build)
    assert site() == site() and site().is_dir()
    assert len(built) == 1
