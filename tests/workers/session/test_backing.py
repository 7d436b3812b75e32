"""A disk that hangs or lies costs a request the time that computing takes, and no more."""

import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from kv_tier.prefix import Sizes
from kv_tier.remote.bucket import StoreError
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


class FakeRemote:
    """An object store that answers, fails or hangs."""

    speed = 1e9

    def __init__(self):
        self.failures, self.gate = 0, threading.Event()

    def count(self, *, failures):
        self.failures += failures

    def stats(self):
        return {"store_failures": float(self.failures)}

    def answers(self, remote):
        return "answer"

    def refuses(self, remote):
        raise StoreError("no such bucket")

    def hangs(self, remote):
        self.gate.wait(30)


@pytest.fixture
def remote(backing):
    backing.remote = FakeRemote()
    yield backing.remote
    backing.remote.gate.set()


def test_without_an_object_store_nobody_is_asked(backing):
    assert backing.ask_store(lambda remote: 1 / 0, 1.0) == (None, "")


def test_a_store_answers_or_says_why_not(backing, remote):
    assert backing.ask_store(remote.answers, 1.0) == ("answer", "")
    assert backing.ask_store(remote.refuses, 1.0) == (None, "no such bucket")
    assert remote.failures == 1 and backing.stats()["store_failures"] == 1


def test_a_store_that_hangs_is_waited_for_once_and_leases_are_kept(backing, remote, monkeypatch):
    before = backing.pulse.moves
    answer, trouble = backing.ask_store(remote.hangs, 0.2)
    assert answer is None and "no answer" in trouble and backing.pulse.moves > before
    assert backing.ask_store(remote.answers, 0.2)[0] is None  # left alone for a while
    monkeypatch.setattr(backing, "_ask_again", 0.0)
    assert backing.ask_store(remote.answers, 0.2) == ("answer", "")


@pytest.mark.parametrize(
    ("num_bytes", "prefill_tokens_per_s", "is_fetched"),
    [(0, 1e3, False), (10**6, 1e3, True), (10**12, 1e3, False), (10**12, 0, True)],
)
def test_kv_is_fetched_if_that_is_faster(
    backing, remote, monkeypatch, num_bytes, prefill_tokens_per_s, is_fetched
):
    fetched = []
    monkeypatch.setattr(backing_module, "missing_bytes", lambda *_: num_bytes)
    monkeypatch.setattr(
        backing_module, "pull", lambda remote, own, **told: fetched.append((own, told["end"]))
    )
    backing.engine = SimpleNamespace(sizes=None, prefill_tokens_per_s=prefill_tokens_per_s)
    backing.bring("manifest", 700)
    assert fetched == ([("manifest", 700)] if is_fetched else [])


def test_a_fetch_that_lasts_longer_than_computing_is_stopped(backing, remote, monkeypatch):
    stopped = threading.Event()

    def pull(remote, own, sizes, end, stops):
        while not stops():
            time.sleep(0.01)
        stopped.set()

    monkeypatch.setattr(backing_module, "missing_bytes", lambda *_: 10)
    monkeypatch.setattr(backing_module, "pull", pull)
    backing.bring("manifest", 700)
    assert stopped.wait(20)
