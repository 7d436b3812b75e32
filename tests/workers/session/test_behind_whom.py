"""Whose KV is written while it runs: a session's, and what another pool is to go on with."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from tests.workers.session.fakes import item_of, turn_of
from workers.queue.running import RunningItems
from workers.queue.wishes import Wishes
from workers.session.turn import Prepared


def added(item, turn):
    """(keep, behind) that the engine is told."""
    told = {}
    engine = SimpleNamespace(add=lambda *args, **named: told.update(named))
    sessions = SimpleNamespace(engine=engine)
    running = RunningItems(None, None, Wishes(), sessions, None, finished=lambda *_: None)
    running.add(item, Prepared(item.request, (), None, turn))
    return told["keep"], told["behind"]


@pytest.mark.parametrize(
    ("turn", "then_pool", "keep", "behind"),
    [(turn_of(), None, True, True), (None, "cpu", False, True), (None, None, False, False)],
    ids=["a session's turn", "a planned handoff", "anything else"],
)
def test_what_somebody_goes_on_with_is_written_while_it_runs(turn, then_pool, keep, behind):
    item = replace(item_of(), then_pool=then_pool)
    assert added(item, turn) == (keep, behind)
