"""A tiny real model, packed once a session."""

from pathlib import Path

import pytest

from workers.model import catalog

GOLDEN = Path(__file__).parents[2] / "golden"


@pytest.fixture(scope="session")
def llama_folder(tmp_path_factory) -> Path:
    """The folder of golden tiny_llama, as `lockstep model add` makes it."""
    home = tmp_path_factory.mktemp("home")
    return catalog.add(GOLDEN / "tiny_llama.Q4_0.gguf", "tiny_llama", home, progress=None)
