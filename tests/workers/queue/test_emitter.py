"""What the engine says is written in order, in few calls, and waits while the store is away."""

import subprocess
import sys
import threading

import pytest
from redis.exceptions import ConnectionError as StoreAway

from workers.queue.emitter import ENDS_PER_CALL, Emitter, Told, Written
from workers.queue.patience import patiently
from workers.queue.pulse import Pulse
from workers.wire import EndEvent, TokenEvent
from workers.worker_store import Claimed

ONE, TWO = Claimed("r1", "e1", 1, None), Claimed("r2", "e2", 1, None)
END = EndEvent(status="finished")


def token(index):
    return TokenEvent(index=index, token_id=index, text="", digest="")


class Store:
    """Remembers calls; fails as often as told; holds them back until open."""

    def __init__(self, failures=0, lost=()):
        self.calls, self.failures, self.lost = [], failures, lost
        self.open = threading.Event()
        self.open.set()

    def tell(self, pool, worker, told):
        self.open.wait(30)
        if self.failures:
            self.failures -= 1
            raise StoreAway("away")
        self.calls.append([words(said) for said in told])
        return [said.item not in self.lost for said in told]


def words(said):
    """Its id, the places of its tokens, and of one that ends its text."""
    indices = [event.index for event in said.tokens]
    return said.item.job_id, indices, None if said.end is None else said.text


def run(store, told):
    lost, ended, pulse = [], [], Pulse()
    emitter = Emitter(store, "cpu", "w", pulse, on_lost=lost.append, on_end=ended.append)
    for item in told:
        emitter.put(item)
    emitter.start()
    emitter.flush(30)
    assert not emitter.is_alive()
    return lost, ended


def test_what_has_come_is_one_call_in_which_tokens_and_end_of_a_request_are_together():
    store = Store()
    told = [Told(ONE, token(0)), Told(TWO, token(5)), Told(ONE, token(1)), Told(ONE, END, "all")]
    assert run(store, told) == ([], [ONE])
    assert store.calls == [[("r1", [0, 1], "all"), ("r2", [5], None)]]


def test_many_ends_are_several_calls_so_that_the_store_is_not_held_up():
    items = [Claimed(f"r{n}", f"e{n}", 1, None) for n in range(ENDS_PER_CALL + 1)]
    store = Store()
    lost, ended = run(store, [Told(item, END) for item in items])
    assert (lost, ended) == ([], items)
    assert [len(call) for call in store.calls] == [ENDS_PER_CALL, 1]


def test_a_mark_is_called_once_all_that_was_told_before_is_written():
    store, seen = Store(), []
    run(store, [Told(ONE, token(0)), Written(lambda: seen.append(len(store.calls)))])
    assert seen == [1]


def test_a_lost_lease_is_told():
    assert run(Store(lost=(ONE,)), [Told(ONE, token(0)), Told(TWO, token(0))]) == ([ONE], [])
    assert run(Store(lost=(ONE,)), [Told(ONE, END), Told(TWO, END)]) == ([ONE], [TWO])


def test_an_outage_loses_nothing():
    store = Store(failures=4)
    assert run(store, [Told(ONE, token(0)), Told(ONE, END)]) == ([], [ONE])
    assert store.calls == [[("r1", [0], "")]]


def test_two_executions_of_one_request_are_told_apart():
    again, store = Claimed("r1", "e9", 1, None), Store()
    run(store, [Told(ONE, token(0)), Told(again, token(0))])
    assert store.calls == [[("r1", [0], None), ("r1", [0], None)]]


def test_a_thread_that_crashes_ends_its_process():
    code = """
import time
from workers.queue.servant import Servant
class Crash(Servant):
    def serve(self):
        raise ZeroDivisionError
Crash("crash").start()
time.sleep(60)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=50)
    assert done.returncode == 70
    assert "ZeroDivisionError" in done.stderr and "a thread crashed" in done.stderr


def test_patience_ends_when_it_is_told_to():
    tries = []

    def fails():
        tries.append(1)
        raise StoreAway("away")

    with pytest.raises(StoreAway):
        patiently(fails, lambda: len(tries) == 3)
    assert len(tries) == 3


def test_patience_is_for_the_store_only():
    with pytest.raises(ZeroDivisionError):
        patiently(lambda: 1 / 0, lambda: False)
