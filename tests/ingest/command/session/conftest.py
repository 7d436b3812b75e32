"""A home with a tiny model, its folder of sessions, and its store."""

from pathlib import Path

import pytest

from tests.ingest.kept_sessions import tier_at
from workers.settings import settings

GGUF = Path(__file__).parents[3] / "golden" / "tiny_llama.Q4_0.gguf"


@pytest.fixture(scope="session")
def packed(tmp_path_factory):
    """A home's models folder with a tiny model."""
    from workers.model import catalog

    home = tmp_path_factory.mktemp("packed")
    catalog.add(GGUF, "tiny", home, progress=None)
    return home / "models"


@pytest.fixture
def home(tmp_path, packed, monkeypatch, redis_url):
    home = tmp_path / "home"
    home.mkdir()
    (home / "models").symlink_to(packed)
    monkeypatch.setenv("LOCKSTEP_HOME", str(home))
    monkeypatch.setenv("LOCKSTEP_MODEL", "tiny")
    monkeypatch.setenv("LOCKSTEP_REDIS_URL", redis_url)
    settings.cache_clear()
    yield home
    settings.cache_clear()


@pytest.fixture
def tier(home):
    tier = tier_at(home)
    yield tier
    tier.close()


@pytest.fixture
def store(redis_url):
    from workers.store import Store
    from workers.wire import Keys

    return Store(redis_url, Keys("lockstep"))
