"""What one node deleted is not left on the disks of the others."""

import pytest

from tests.kv_tier.remote.homes import Home
from workers.session import void
from workers.session.void import drop_void
from workers.wire import Keys, full_id
from workers.worker_store import WorkerStore


@pytest.mark.parametrize("batch", [1, 500])
def test_files_of_deleted_sessions_go_and_no_others(redis_url, tmp_path, monkeypatch, batch):
    monkeypatch.setattr(void, "BATCH", batch)
    store, home = WorkerStore(redis_url, Keys("lockstep", node="b")), Home(tmp_path, None)
    for name in ("gone", "anew", "kept", "odd"):
        home.say(name, range(20), fence=5)
    for name in ("gone", "anew"):
        store.session_note(full_id("acme", name), fence=5)
        store.session_forget(full_id("acme", name))
    home.say("anew", range(30), fence=7)
    store.redis.set(store.keys.session(full_id("acme", "odd")), "of another type")
    assert drop_void(store, home.tier) == 1
    assert sorted(home.tier.sessions.ids()) == [("acme", name) for name in ("anew", "kept", "odd")]
    assert drop_void(store, home.tier) == 0
    home.close()
