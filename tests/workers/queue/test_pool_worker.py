"""What a pool does with items that are cancelled, moved or lost while a restorer has them."""

import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from kernels.arrays import DeviceLost
from tests.workers.queue.fake_engine import FakeEngine, expected_text
from tests.workers.session.fakes import FakeBacking
from workers.queue.messages import Do
from workers.queue.pool_worker import STALLED_S, PoolWorker
from workers.queue.pulse import Pulse
from workers.session.turn import Prepared
from workers.wire import PoolLoad, TokenEvent


class Engine(FakeEngine):
    """With the words that sessions need."""

    sizes = None

    def __init__(self):
        super().__init__(lambda: None)
        self.dropped = []
        self.parking = SimpleNamespace(displaced=list, returning=lambda: None)

    def add(self, request, journal=(), *, prefix=None, keep=False, behind=False):
        super().add(request, journal)

    def suspend(self, request_id):
        return None

    def release(self, kept):
        pass

    def behind(self, *arguments):
        return []


class Desk:
    """A worker whose threads are run by the test: claimed items, prepared when it says so."""

    def __init__(self, node, *, backing=True):
        self.node, self.engine, self.backing = node, Engine(), FakeBacking()
        self.backing.engine = self.engine
        self.backing.stats = dict
        self.worker = PoolWorker(
            node.store,
            "cpu",
            self.engine,
            name="w",
            capacity=8,
            pulse=Pulse(),
            backing=self.backing if backing else None,
        )

    def claim(self, request_id, **more):
        self.node.route(request_id, **more)
        [item] = self.node.store.claim("cpu", "w", 1)
        self.worker.held[request_id] = item
        return item

    def run(self):
        """The engine to its end, and everything is written."""
        while self.worker.has_work():
            self.worker.advance()
        self.worker.emitter.start()
        self.worker.emitter.flush(20)


@pytest.fixture
def desk(node):
    return Desk(node)


def prepared(item, journal=()):
    prefix = SimpleNamespace(is_closed=False)
    prefix.close = lambda: setattr(prefix, "is_closed", True)
    return Prepared(item.request, journal, prefix)


def test_what_is_cancelled_while_it_is_restored_never_starts(desk):
    item = desk.claim("r1")
    ready = prepared(item, [TokenEvent(index=0, token_id=1, text="Hel", digest="0")])
    desk.worker.cancel("r1")
    desk.worker.start(item, ready)
    assert ready.prefix.is_closed and not desk.engine.requests
    desk.run()
    job = desk.node.store.job("r1")
    assert (job["status"], job["text"]) == ("cancelled", "Hel")
    assert desk.worker.held == {} and desk.worker.wishes.cancelled == set()


def test_what_is_moved_while_it_is_restored_is_handed_over_at_once(desk):
    item = desk.claim("r1")
    ready = prepared(item)
    desk.worker.move("r1", "gpu")
    desk.worker.start(item, ready)
    assert ready.prefix.is_closed and not desk.engine.requests
    desk.run()
    assert desk.node.queue("gpu") == ["r1"]
    assert (desk.worker.held, desk.worker.wishes.moving) == ({}, {})


def test_what_is_lost_while_it_is_restored_is_given_back(desk):
    item = desk.claim("r1")
    ready = prepared(item)
    desk.worker.discard(item, ready)
    assert ready.prefix.is_closed


def test_a_wish_for_an_item_that_ended_is_forgotten_with_it(desk):
    item = desk.claim("r1")
    desk.worker.start(item, prepared(item))
    desk.worker.cancel("r2")
    desk.worker.move("r2", "gpu")
    desk.run()
    assert desk.node.store.job("r1")["text"] == expected_text("r1", 4)
    assert (desk.worker.wishes.cancelled, desk.worker.wishes.moving) == (set(), {})


def test_an_item_that_ends_by_itself_is_not_moved(desk):
    item = desk.claim("r1")
    desk.worker.start(item, prepared(item))
    desk.worker.move("r1", "gpu")
    desk.run()
    assert desk.node.status("r1") == "finished"


def test_a_pool_without_files_says_that_it_keeps_no_sessions(node):
    desk = Desk(node, backing=False)
    item = desk.claim("r1", session_id="s")
    desk.worker.start(item, prepared(item))
    plain = desk.claim("r2")
    desk.worker.start(plain, prepared(plain))
    desk.run()
    job = node.store.job("r1")
    assert (job["status"], job["code"]) == ("failed", "no_sessions")
    assert node.status("r2") == "finished"


@pytest.mark.parametrize(
    ("num_tokens", "journal", "to_a_restorer"), [(2, 0, False), (257, 0, True), (2, 1, True)]
)
def test_only_what_files_may_know_goes_to_a_restorer(desk, num_tokens, journal, to_a_restorer):
    item = desk.claim("r1", token_ids=tuple(range(num_tokens)))
    told = [TokenEvent(index=n, token_id=1, text="", digest="0") for n in range(journal)]
    desk.node.store.journal("cpu", [(item, told)])
    desk.worker.hand_in(replace(item, is_first=not journal))
    assert desk.worker.sessions.of_prompts.empty() == (not to_a_restorer)
    assert desk.worker.inbox.empty() == to_a_restorer


def test_a_session_goes_to_the_restorers_of_sessions(desk):
    item = desk.claim("r1", session_id="s")
    desk.worker.hand_in(item)
    assert desk.worker.sessions.of_sessions.get_nowait() is item


@pytest.mark.parametrize("when", ["before a step", "when something is written"])
def test_a_device_that_fails_while_memory_is_given_hands_its_requests_over(desk, when):
    """Whoever gets memory has it filled from files at once, in a step or not."""

    def lost():
        raise DeviceLost("the GPU failed")

    desk.node.store.report(PoolLoad(pool="gpu", worker="g", state="ready", total_blocks=1))
    item = desk.claim("r1")
    desk.worker.start(item, prepared(item))
    desk.engine.parking.displaced = lost
    desk.worker.advance() if when == "before a step" else desk.worker.handle(Do(list))
    desk.worker.emitter.start()
    desk.worker.emitter.flush(20)
    assert desk.worker.failure == "the GPU failed"
    assert (desk.node.queue("gpu"), desk.worker.held) == (["r1"], {})


@pytest.mark.parametrize(
    "other",
    [
        PoolLoad(pool="gpu", worker="g", state="ready", total_blocks=1),
        PoolLoad(pool="gpu", worker="g", state="loading", total_blocks=9),
    ],
)
def test_what_the_other_pool_cannot_hold_waits_for_the_return_of_the_device(desk, other):
    """It was handed over all the same, and failed there as too large."""
    desk.node.store.report(other)
    item = desk.claim("r1", max_tokens=300)
    desk.worker.start(item, prepared(item))
    desk.worker.fail(DeviceLost("the GPU failed"))
    desk.worker.emitter.start()
    desk.worker.emitter.flush(20)
    desk.worker.give_back()
    assert (desk.node.queue("cpu"), desk.node.queue("gpu")) == (["r1"], [])
    job = desk.node.store.job("r1")
    assert (job["status"], job["attempts"]) == ("queued", 1)


def test_a_request_that_the_device_fails_of_each_time_ends(desk):
    """Nobody else can hold it, so it would come back for ever."""
    desk.node.route("r1", max_tokens=300)
    for attempt in range(1, desk.node.store.max_attempts + 1):
        [item] = desk.node.store.claim("cpu", "w", 1)
        assert item.attempts == attempt
        desk.worker.held["r1"] = item
        desk.worker.fail(DeviceLost("the GPU failed"))
        desk.worker.give_back()
    assert desk.node.store.claim("cpu", "w", 1) == []
    job = desk.node.store.job("r1")
    assert (job["status"], job["code"]) == ("failed", "poison")


def test_who_waits_for_memory_alone_waits_for_news_and_does_not_spin(desk):
    desk.engine.is_stalled, heard = True, []
    begin = time.monotonic()
    desk.worker.advance()
    assert time.monotonic() - begin >= STALLED_S
    desk.worker.inbox.put(Do(lambda: heard.append("released")))
    desk.worker.advance()
    assert heard == ["released"]


def test_a_class_that_went_unheard_is_set_right_by_a_beat_whatever_was_heard_before(desk):
    """The first wish came through, the one that took it back did not: all beats say the same."""
    item = desk.claim("r1", sla="batch")
    desk.worker.bookkeeper.beat()
    desk.node.store.promote("r1", "realtime")
    desk.worker.promote("r1", "realtime")
    desk.node.store.promote("r1", "batch")
    desk.worker.bookkeeper.beat()
    while not desk.worker.inbox.empty():
        desk.worker.handle(desk.worker.inbox.get())
    assert desk.worker.class_of(item) == "batch"
