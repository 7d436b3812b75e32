"""Tiny models with random weights, packed once for all tests of the workers."""

import json
from pathlib import Path

import numpy as np
import pytest

from workers.model import catalog
from workers.text.text_model import TextModel

GOLDEN = Path(__file__).parents[1] / "golden"
TINY = sorted(path.name.split(".")[0] for path in GOLDEN.glob("tiny_*.gguf"))


@pytest.fixture(scope="session")
def golden():
    """A function that reads one file of tests/golden."""

    def read(name: str):
        path = GOLDEN / name
        return json.loads(path.read_text("utf-8")) if path.suffix == ".json" else np.load(path)

    return read


@pytest.fixture(scope="session")
def tiny_home(tmp_path_factory) -> Path:
    """A LOCKSTEP_HOME with all tiny models."""
    home = tmp_path_factory.mktemp("tiny-home")
    for name in TINY:
        (path,) = GOLDEN.glob(f"{name}.*gguf")
        catalog.add(path, name, home, progress=None)
    return home


@pytest.fixture(scope="session")
def tiny_text(tiny_home) -> TextModel:
    """The text side of tiny_llama: each of the 256 bytes is a token, ChatML, some merges."""
    return TextModel.load(catalog.folder_of(tiny_home, "tiny_llama"))


@pytest.fixture(scope="session")
def default_text(model_home) -> TextModel:
    """The text side of the default model."""
    return TextModel.load(catalog.folder_of(model_home, "smollm2-135m"))
