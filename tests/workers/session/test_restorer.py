"""Between claim and engine: the session's prompt, its files, and only good reasons not to start."""

import errno
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from kv_tier.files import DiskError, DiskFull
from kv_tier.manifest import Message
from tests.workers.session.fakes import item_of, manifest_of
from tests.workers.session.restorer_desk import new
from workers.session import restorer as restorer_module
from workers.session.compose import ComposeError, Turn
from workers.session.shortage import outlast

BROKEN = DiskError(Path("x"), OSError(errno.EIO, "Input/output error"))
FULL = DiskFull(Path("x"), OSError(errno.ENOSPC, "No space left on device"))
NO_DESCRIPTOR = OSError(errno.EMFILE, "Too many open files")


def test_the_prompt_is_composed_and_written_back_before_it_starts(desk):
    desk.run(new())
    prepared = desk.done["r1"]
    assert prepared.request.token_ids == (1, 2, 3, 4) and prepared.request.composed
    assert desk.store.composed == [(prepared.request, None)]
    assert (prepared.turn.fence, prepared.turn.head) == (5, None)


def test_what_was_composed_stays_so(desk):
    desk.run(item_of(token_ids=(9, 9)))
    assert desk.done["r1"].request.token_ids == (9, 9)


def test_a_turn_that_was_committed_is_known_again(desk):
    desk.sessions.now = manifest_of(generation=3, last_request="r1")
    desk.run(item_of())
    assert desk.done["r1"].turn.turn is None
    assert desk.done["r1"].turn.head.generation == 3


SAID = (Message("user", "Hi"), Message("assistant", "Hey", begin=3, end=5))


@pytest.mark.parametrize("content, is_said", [("Hi", True), ("Something else", False)])
def test_a_committed_turn_is_not_said_twice_when_the_store_lost_its_prompt(desk, content, is_said):
    """Found by tests/chaos: the store's log was cut, the files of the session were not."""
    desk.sessions.now = manifest_of(
        generation=3, token_ids=(7, 8, 9, 10, 11), last_request="r1", messages=SAID
    )
    desk.run(new(messages=({"role": "user", "content": content},)))
    prepared = desk.done["r1"]
    assert prepared.request.composed and (prepared.turn.turn is None) == is_said
    assert prepared.request.token_ids == ((7, 8, 9) if is_said else (1, 2, 3, 4))
    assert desk.store.composed == [(prepared.request, None)]


def test_who_lost_the_lease_leaves_it(desk):
    desk.store.has_lease = False
    desk.run(new())
    assert (desk.lost, desk.done, desk.ended) == (["r1"], {}, {})


def test_a_prompt_that_cannot_be_composed_ends_with_field_and_reason(desk):
    desk.turn = ComposeError("messages", "there are none")
    desk.run(new())
    end = desk.ended["r1"]
    assert (end.status, end.code) == ("failed", "bad_request")
    assert end.error == "messages: there are none"


def test_a_bad_record_does_not_end_the_restorer(desk):
    desk.turn = ZeroDivisionError()
    desk.run(new("r1"))
    assert desk.ended["r1"].code == "bad_record"
    desk.turn = Turn([1], (), 0, None)
    desk.run(new("r2"))
    assert "r2" in desk.done


def test_a_history_that_cannot_be_read_is_not_forgotten(desk):
    desk.sessions.head_fails = BROKEN
    desk.run(new())
    assert desk.ended["r1"].code == "session_unreadable"
    assert "Input/output error" in desk.ended["r1"].error


def test_a_full_disk_does_not_keep_a_turn_from_starting(desk):
    desk.sessions.take_fails = FULL
    desk.run(new())
    assert desk.done["r1"].turn.fence == 5


def test_another_pool_that_still_writes_is_asked_and_waited_for(desk):
    desk.store.hash["writing"] = "other"
    looks = []

    def loads():
        looks.append(1)
        desk.store.hash["writing"] = ""
        return [SimpleNamespace(worker="other")]

    desk.store.loads = loads
    desk.run(new())
    assert desk.asked == ["suspend s"] and looks and "r1" in desk.done


def test_a_pool_that_is_gone_is_not_waited_for(desk):
    desk.store.hash["writing"] = "other"
    begin = time.monotonic()
    desk.run(new())
    assert "r1" in desk.done and time.monotonic() - begin < restorer_module.WRITING_S


def test_the_wait_for_another_pool_has_an_end(desk, monkeypatch):
    monkeypatch.setattr(restorer_module, "WRITING_S", 0.2)
    desk.store.hash["writing"] = "other"
    desk.store.loads = lambda: [SimpleNamespace(worker="other")]
    desk.run(new())
    assert "r1" in desk.done


def test_who_is_cancelled_meanwhile_waits_for_nobody(desk):
    desk.store.hash["writing"] = "other"
    desk.store.loads = lambda: [SimpleNamespace(worker="other")]
    desk.is_wanted = False
    desk.run(new())
    assert desk.asked == [] and "r1" in desk.done


def test_leases_are_kept_while_it_works(desk):
    before = desk.backing.pulse.moves
    desk.run(new())
    assert desk.backing.pulse.moves > before


def test_a_prompt_without_a_session_takes_no_fence(desk):
    desk.run(item_of(session_id=None))
    assert desk.done["r1"].turn is None and desk.sessions.fence == 0


@pytest.mark.parametrize("error", [NO_DESCRIPTOR, DiskError(Path("x"), NO_DESCRIPTOR)])
def test_a_process_without_a_descriptor_ends_no_request(desk, monkeypatch, error):
    """Found by tests/chaos: each of them failed as `bad_record`, though its history was whole."""
    tries = []
    whole = desk.sessions.head

    def head(*names):
        tries.append(names)
        if len(tries) < 3:
            raise error
        return whole(*names)

    monkeypatch.setattr(desk.sessions, "head", head)
    desk.run(new())
    assert list(desk.done) == ["r1"] and not desk.ended


def test_a_shortage_that_does_not_pass_ends_the_process_and_no_request(desk, monkeypatch):
    monkeypatch.setattr(restorer_module, "outlast", partial(outlast, lasts_s=0.1))
    desk.sessions.head_fails = NO_DESCRIPTOR
    with pytest.raises(OSError, match="Too many open files"):
        desk.run(new())
    assert not desk.done and not desk.ended
