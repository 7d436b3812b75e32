"""Settings of a node over the test's store, for commands that run in this process."""

import pytest

from tests.ingest.conftest import MODEL
from workers.settings import settings
from workers.store import Store
from workers.wire import Keys


@pytest.fixture
def environment(monkeypatch, tiny_home, redis_url):
    monkeypatch.setenv("LOCKSTEP_HOME", str(tiny_home))
    monkeypatch.setenv("LOCKSTEP_MODEL", MODEL)
    monkeypatch.setenv("LOCKSTEP_REDIS_URL", redis_url)
    settings.cache_clear()
    yield monkeypatch
    settings.cache_clear()


@pytest.fixture
def store(environment, redis_url):
    return Store(redis_url, Keys("lockstep"))
