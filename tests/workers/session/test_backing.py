"""A disk that hangs or lies costs a request the time that computing takes, and no more."""

import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from kv_tier.prefix import Sizes
from tests.workers.session.fakes import kept_of, request_of
from workers.queue.pulse import Pulse
from workers.session import backing as backing_module
from workers.session.backing import Backing


class FakeEngine:
    sizes = Sizes(b"f" * 32, 4096, 16, 0)
    prefill_tokens_per_s = 1e6

    def resident(self, key):
        return False

    def sources(self, kept, *, state):
        return iter(["block", "tail", "state"] if state else ["block", "tail"])


class Tier:
    def __init__(self):
        self.asked, self.gate, self.fails = [], threading.Event(), None
        self.gate.set()
        self.prefix = SimpleNamespace(is_closed=False)
        self.prefix.close = lambda: setattr(self.prefix, "is_closed", True)
        self.files: set[bytes] = set()
        self.objects = SimpleNamespace(has=lambda kind, key: key in self.files)

    def chain(self, tenant, fingerprint):
        return (tenant, fingerprint)

    def fetch(self, chain, token_ids, sizes, **more):
        self.asked.append((chain, token_ids, more["ends"]))
        self.gate.wait(30)
        if self.fails:
            raise self.fails
        return self.prefix

    def put(self, tenant, sources, *, seconds):
        return len(list(sources))

    def renew(self, keys):
        self.renewed = list(keys)

    def stats(self):
        raise OSError("no")


@pytest.fixture
def backing(monkeypatch):
    monkeypatch.setattr(backing_module, "PATIENCE_S", 0.3)
    monkeypatch.setattr(backing_module, "LOOK_S", 0.05)
    text = SimpleNamespace(weights_digest="ab" * 16)
    backing = Backing(Tier(), FakeEngine(), text, Pulse(), model="m")
    yield backing
    backing.tier.gate.set()


def test_prompt_and_journal_are_looked_for(backing):
    journal = [SimpleNamespace(token_id=8), SimpleNamespace(token_id=9)]
    assert backing.fetch(request_of(), journal, None) is backing.tier.prefix
    assert backing.tier.asked == [(("default", b"f" * 32), [1, 2, 3, 8, 9], [4])]


def test_a_disk_that_hangs_is_left_alone_and_its_files_are_closed(backing):
    backing.tier.gate.clear()
    before = backing.pulse.moves
    assert backing.fetch(request_of(), [], None) is None
    assert backing.pulse.moves > before
    backing.tier.gate.set()
    end = time.monotonic() + 20
    while not backing.tier.prefix.is_closed:
        assert time.monotonic() < end
        time.sleep(0.01)


def test_whatever_fails_is_a_shorter_hit(backing):
    backing.tier.fails = ZeroDivisionError()
    assert backing.fetch(request_of(), [], None) is None
    assert backing.stats() == {}


def test_leases_are_kept_while_it_writes(backing):
    before = backing.pulse.moves
    assert backing.put(kept_of(), state=True) == 3
    assert backing.pulse.moves == before + 3


def test_of_what_goes_on_only_what_is_new_is_written(backing):
    kept = replace(kept_of(512), first=1)
    backing.tier.files = {kept.blocks[0][0]}
    assert backing.put(kept, state=True) == 2  # of a block, a tail and a state
    assert backing.tier.renewed == [kept.blocks[0][0]]


def test_a_hole_that_a_failed_write_left_is_filled_by_the_next(backing):
    """Behind it nothing is found: who dies then would lose all that was written after it."""
    kept = replace(kept_of(1024), first=3)
    backing.tier.files = {kept.blocks[0][0], kept.blocks[2][0]}
    backing.engine.sources = lambda kept, state: iter(kept.blocks)
    assert backing.put(kept, state=False) == 3
    assert backing.tier.renewed == [kept.blocks[0][0]]
