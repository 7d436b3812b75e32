"""Displaced work of a pool, between the engine that parks it and the thread that writes it."""

from queue import SimpleQueue
from types import SimpleNamespace

from workers.engine.kept import Kept
from workers.queue.parking import Parking


class Desk:
    """A Parking whose engine parks what it is told to, and whose writer takes its time."""

    def __init__(self) -> None:
        self.displaced: list[str] = []
        self.written: list[str] = []
        self.returning: str | None = None
        self.leaving: list = []
        self.inbox: SimpleQueue = SimpleQueue()
        engine = SimpleNamespace(
            displaced=lambda: self.displaced,
            returning=lambda: self.returning,
            park=kept_of,
            written=self.written.append,
        )
        backing = SimpleNamespace(engine=SimpleNamespace(parking=engine))
        self.parking = Parking(backing, SimpleNamespace(put=self.leaving.append), self.inbox)

    def park(self, request_id: str) -> None:
        self.displaced = [request_id]
        self.parking.mind()
        self.displaced = []

    def write(self) -> None:
        """The oldest entry of the writer; the main thread hears of it."""
        self.leaving.pop(0).then()
        self.inbox.get_nowait().call()


def kept_of(request_id: str) -> Kept:
    request = SimpleNamespace(id=request_id)
    return Kept(request, token_ids=[1, 2, 3], num_prompt=2, num_kv=2, blocks=[])


def test_what_is_written_may_be_brought_back():
    desk = Desk()
    desk.park("a")
    assert desk.written == []
    desk.write()
    assert desk.written == ["a"]
    desk.returning = "a"
    desk.parking.mind()
    assert desk.parking.inbox.get_nowait().request.id == "a"


def test_what_an_earlier_execution_left_to_write_says_nothing_of_what_is_parked_now():
    """Its lease was lost while its KV was on its way to a slow disk, and it came back and was
    displaced again: with both writes it would be asked back twice."""
    desk = Desk()
    desk.park("a")
    desk.parking.forget("a")
    desk.park("a")
    desk.write()
    assert desk.written == []
    desk.write()
    assert desk.written == ["a"]


def test_what_has_left_is_not_told_of():
    desk = Desk()
    desk.park("a")
    desk.parking.forget("a")
    desk.write()
    assert desk.written == []
