"""A restorer without pools or files: what it makes of its items."""

from queue import SimpleQueue
from types import SimpleNamespace

import pytest

from tests.workers.session.fakes import FakeBacking, FakeStore, item_of
from workers.session import restorer as restorer_module
from workers.session.compose import Turn
from workers.session.restorer import Restorer


class Desk:
    """A restorer run in the test's thread, and what it made of its items."""

    def __init__(self):
        self.backing, self.store = FakeBacking(), FakeStore()
        self.sessions = self.backing.tier.sessions
        self.done, self.ended, self.lost, self.asked = {}, {}, [], []
        self.store.keys = SimpleNamespace(control="control")
        self.store.redis = SimpleNamespace(publish=lambda _, told: self.asked.append(told))
        self.is_wanted = True
        self.restorer = Restorer(
            "test",
            self.store,
            "w",
            self.backing,
            SimpleQueue(),
            done=lambda item, prepared: self.done.update({item.job_id: prepared}),
            ended=lambda item, end: self.ended.update({item.job_id: end}),
            lost=lambda item: self.lost.append(item.job_id),
            is_wanted=lambda item: self.is_wanted,
        )

    def run(self, *items):
        for item in (*items, None):
            self.restorer.items.put(item)
        self.restorer.serve()


@pytest.fixture
def desk(monkeypatch):
    desk = Desk()
    desk.turn = Turn([1, 2, 3, 4], (), 2, None)

    def compose(request, head, text):
        if isinstance(desk.turn, Exception):
            raise desk.turn
        return desk.turn

    monkeypatch.setattr(restorer_module, "compose", compose)
    return desk


def new(request_id="r1", **more):
    return item_of(request_id, composed=False, token_ids=(), **more)


def answered(turn_messages=()):
    return Turn([1, 2, 3, 4], tuple(turn_messages), 0, None)
