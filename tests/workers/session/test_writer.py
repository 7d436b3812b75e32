"""What is written behind: at once, or when there is time; and each Kept is released once."""

import errno
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from kv_tier.files import DiskFull
from tests.workers.session.fakes import FakeBacking, FakeStore, kept_of, manifest_of
from workers.session import writer as writer_module
from workers.session.suspended import Suspended
from workers.session.writer import Writer

FULL = DiskFull(Path("x"), OSError(errno.ENOSPC, "No space left on device"))


class Desk:
    """A writer, and what became of what it was given."""

    def __init__(self, **bounds):
        self.backing, self.store = FakeBacking(), FakeStore()
        self.store.hash["writing"] = "w"
        self.released = []
        self.writer = Writer(
            self.store,
            "w",
            self.backing,
            release=self.released.append,
            release_kv=self.release_kv,
            **({"blocks_max": 100, "states_max": 8} | bounds),
        )
        self.tier, self.puts = self.backing.tier, self.backing.puts

    def release_kv(self, kept, then):
        """As the engine's thread does it."""
        self.released.append(kept)
        then(kept_of(kept.num_kv, kept.request.id, state=True))

    def until(self, true):
        end = time.monotonic() + 20
        while not true():
            assert time.monotonic() < end, (self.puts, self.released, self.writer.entries)
            time.sleep(0.005)


@pytest.fixture
def desk(monkeypatch):
    monkeypatch.setattr(writer_module, "IDLE_S", 3600.0)
    desk = Desk()
    yield desk
    desk.tier.gate.set()


def shut(desk):
    desk.tier.gate.clear()
    desk.writer.start()


def test_kv_is_written_at_once_and_named_by_a_manifest(desk):
    desk.writer.start()
    desk.writer.put(Suspended(kept_of(600), "s", manifest_of(generation=4)))
    desk.until(lambda: desk.released)
    [manifest] = desk.tier.committed
    assert (manifest.generation, manifest.num_kv, len(manifest.blocks)) == (5, 600, 2)
    assert desk.puts == [("r1", 600, False)]
    desk.until(lambda: desk.store.hash["writing"] == "")


@pytest.mark.parametrize("when", ["written", "being written", "waiting"])
def test_what_was_written_of_a_request_that_failed_goes_out_of_the_files(desk, when):
    """Its numbers were not finite, and the files kept what they were made of."""
    if when != "written":
        shut(desk)
        desk.writer.put(Suspended(kept_of(512, "other"), is_behind=True))
    else:
        desk.writer.start()
    desk.writer.put(Suspended(replace(kept_of(768), num_reused=300), is_behind=True))
    desk.until(lambda: when != "written" or desk.released)
    if when == "being written":
        desk.tier.gate.set()
    desk.writer.ended("r1", is_spoiled=True)
    desk.tier.gate.set()
    desk.until(lambda: desk.tier.discarded)
    assert desk.tier.discarded == {("block", bytes([n]) * 32) for n in (1, 2)}


def test_what_was_written_of_a_request_that_ended_stays(desk):
    desk.writer.start()
    desk.writer.put(Suspended(kept_of(768), is_behind=True))
    desk.until(lambda: desk.released)
    desk.writer.ended("r1")
    assert desk.writer.behind == {} and desk.tier.discarded == set()


def test_state_waits_in_ram_until_the_session_idles(desk, monkeypatch):
    desk.writer.start()
    desk.writer.put(Suspended(kept_of(600, state=True), "s", manifest_of()))
    desk.until(lambda: desk.writer.entries and desk.writer.entries[0].is_kv_written)
    assert (len(desk.released), desk.store.hash["writing"]) == (1, "w")
    monkeypatch.setattr(writer_module, "IDLE_S", 0.0)
    desk.until(lambda: desk.store.hash["writing"] == "")
    assert desk.puts == [("r1", 600, False), ("r1", 600, True)]
    assert desk.tier.committed[-1].checkpoints[0].position == 600
    assert desk.tier.committed[-1].generation == 3


def test_state_is_written_when_another_pool_asks_for_the_session(desk):
    desk.writer.start()
    desk.writer.put(Suspended(kept_of(600, state=True), "s", manifest_of()))
    desk.until(lambda: desk.writer.entries and desk.writer.entries[0].is_kv_written)
    desk.writer.want("another")
    desk.writer.want("s")
    desk.until(lambda: desk.store.hash["writing"] == "")
    assert desk.puts[-1] == ("r1", 600, True)


def test_who_asks_for_a_session_that_is_written_is_told_so(desk):
    desk.writer.start()
    desk.writer.want("s")
    desk.until(lambda: desk.store.hash["writing"] == "")


def test_a_state_that_is_gone_is_not_waited_for(desk):
    desk.writer.release_kv = lambda kept, then: then(None)
    desk.writer.start()
    desk.writer.put(Suspended(kept_of(600, state=True), "s", manifest_of()))
    desk.until(lambda: desk.store.hash["writing"] == "")


def test_a_session_that_goes_on_takes_the_place_of_its_last_turn(desk):
    desk.writer.start()
    desk.writer.put(Suspended(kept_of(600, state=True), "s", manifest_of()))
    desk.until(lambda: desk.writer.entries and desk.writer.entries[0].is_kv_written)
    desk.writer.put(Suspended(kept_of(700, "r2", state=True), "s", manifest_of(7)))
    desk.until(lambda: len(desk.released) == 3)
    assert [entry.kept.num_kv for entry in desk.writer.entries] == [700]
    assert ("r1", 600, True) not in desk.puts


def test_what_is_short_of_memory_is_written_and_then_dropped(desk, monkeypatch):
    shut(desk)
    first, second = kept_of(600), kept_of(600, "r2")
    desk.writer.put(Suspended(first, "s", manifest_of()))
    desk.until(lambda: desk.writer.entries[0].is_busy)
    desk.writer.put(Suspended(second, "t", manifest_of()))
    desk.writer.hurry(True)
    assert desk.released == []
    monkeypatch.setattr(writer_module, "SHORT_S", -1.0)
    desk.writer.hurry(True)
    assert desk.released == [second]  # what is busy cannot be dropped
    assert desk.writer.stats()["suspend_dropped"] == 1


def test_it_never_holds_more_than_twice_its_bound(monkeypatch):
    monkeypatch.setattr(writer_module, "IDLE_S", 3600.0)
    desk = Desk(blocks_max=6)
    shut(desk)
    kepts = [kept_of(600, f"r{n}") for n in range(20)]
    for number, kept in enumerate(kepts):
        desk.writer.put(Suspended(kept, f"s{number}", manifest_of()))
        held = sum(len(entry.kept.blocks) + 1 for entry in desk.writer.entries)
        assert held <= 12
    desk.tier.gate.set()
    assert desk.writer.drain(20)
    assert sorted(map(id, desk.released)) == sorted(map(id, kepts))


def test_a_full_disk_gives_the_memory_back_and_says_so(desk):
    desk.tier.fails = FULL
    desk.writer.start()
    called = threading.Event()
    kept = kept_of(600)
    desk.writer.put(Suspended(kept, then=called.set))
    assert called.wait(20)
    assert desk.released == [kept]
    assert desk.writer.stats()["suspend_failed"] == 1


def test_of_a_turn_that_was_not_computed_here_nothing_is_written(desk):
    desk.writer.start()
    desk.writer.put(Suspended(kept_of(0), "s", manifest_of(num_kv=300, blocks=(b"0" * 32,))))
    desk.until(lambda: desk.released)
    assert (desk.puts, desk.tier.committed) == ([], [])


def test_a_stale_fence_is_no_error(desk):
    desk.tier.sessions.fence = 99
    desk.writer.start()
    desk.writer.put(Suspended(kept_of(600), "s", manifest_of()))
    desk.until(lambda: desk.released)
    assert desk.tier.committed == []
    assert desk.writer.is_alive()


def test_a_stopping_pool_writes_all_what_was_used_last_first(desk):
    shut(desk)
    for number in range(4):
        desk.writer.put(Suspended(kept_of(300, f"r{number}", state=True), f"s{number}"))
        desk.until(lambda: desk.writer.entries[0].is_busy)
    assert not desk.writer.drain(0.05)
    desk.tier.gate.set()
    assert desk.writer.drain(20)
    ids = [request_id for request_id, _, state in desk.puts if state]
    assert ids in (["r0", "r3", "r2", "r1"], ["r3", "r2", "r1", "r0"])
    assert len(desk.released) == 5  # r0 in two parts


def test_what_is_handed_over_is_told_when_all_of_it_is_written(desk):
    desk.writer.start()
    told = []
    desk.writer.put(Suspended(kept_of(600, state=True), then=lambda: told.append(list(desk.puts))))
    desk.until(lambda: told)
    assert told == [[("r1", 600, True)]]
    assert len(desk.released) == 1


def test_what_goes_on_is_written_with_its_state_and_given_back(desk):
    desk.writer.start()
    kept = kept_of(512, state=True)
    desk.writer.put(Suspended(kept, is_behind=True))
    desk.until(lambda: desk.released == [kept])
    assert desk.puts == [("r1", 512, True)]
    assert desk.tier.committed == [] and desk.writer.stats()["suspended_bytes"] == 0
    assert desk.writer.stats()["behind_bytes"] > 0
    assert desk.store.cached == {"r1": 0}


def test_what_ended_or_is_waited_for_goes_before_what_goes_on(desk):
    shut(desk)
    desk.writer.put(Suspended(kept_of(300, "r0"), "s0", manifest_of()))
    desk.until(lambda: desk.writer.entries[0].is_busy)
    desk.writer.put(Suspended(kept_of(512, "goes-on"), is_behind=True))
    desk.writer.put(Suspended(kept_of(300, "ended"), "s1", manifest_of()))
    desk.writer.put(Suspended(kept_of(300, "moves"), then=lambda: None))
    desk.tier.gate.set()
    desk.until(lambda: len(desk.released) == 4)
    assert [request_id for request_id, *_ in desk.puts] == ["r0", "moves", "ended", "goes-on"]


def test_nothing_is_written_behind_while_memory_or_the_disk_is_short(desk):
    assert desk.writer.takes_behind
    desk.writer.hurry(True)
    assert not desk.writer.takes_behind
    desk.writer.hurry(False)
    desk.tier.fails = FULL
    desk.writer.start()
    kept = kept_of(512)
    desk.writer.put(Suspended(kept, is_behind=True))
    desk.until(lambda: desk.released == [kept])
    assert not desk.writer.takes_behind


def test_states_of_those_who_go_on_take_no_slot_that_is_wanted(desk):
    shut(desk)
    assert desk.writer.state_every_ms == writer_module.STATE_EVERY_MS
    for number in range(8):
        desk.writer.put(Suspended(kept_of(512, f"r{number}", state=True), is_behind=True))
    assert desk.writer.state_every_ms is None


def test_what_nobody_needs_is_collected_when_there_is_time(desk):
    desk.writer.collect_at = 0.0
    desk.writer.start()
    desk.until(lambda: desk.tier.collected == 1)


def test_a_session_that_is_too_old_may_begin_anew(desk):
    desk.writer.collect_at = 0.0
    desk.writer.start()
    desk.until(lambda: desk.store.forgotten == ["acme--old"])
