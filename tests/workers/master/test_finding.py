"""Where the master is: who is asked, in which order, and when a connection is one too old."""

import threading
import time

import pytest

from workers.master.finding import Cluster, Master, NoMaster

A, B, C, D = (("h", number) for number in range(1, 5))


class Told(Cluster):
    """Nodes that say what `view` holds of them; an exception is raised."""

    def __init__(self, *places, view):
        super().__init__(places, 7, {})
        self.view, self.asked = view, []

    def told_by(self, place):
        self.asked.append(place)
        said = self.view[place]
        if isinstance(said, Exception):
            raise said
        return said, [A, B, C, D]


def test_nodes_that_the_url_does_not_name_are_asked_when_its_own_are_gone():
    nodes = Told(A, view={A: B})
    assert nodes.ask(False) == B
    nodes.view = {A: NoMaster("gone"), B: NoMaster("gone"), C: D}
    assert nodes.ask(False) == D


def test_who_did_not_answer_is_asked_last():
    nodes = Told(A, B, view={A: NoMaster("gone"), B: C})
    nodes.ask(False)
    nodes.asked.clear()
    nodes.ask(False)
    assert nodes.asked == [B] and nodes.places[-1] == A


def test_who_told_something_wrong_is_not_asked_first_again():
    """Such as a master that is cut off from its Cluster and does not know it yet."""
    nodes = Told(A, B, view={A: A, B: C})
    assert [nodes.ask(False), nodes.ask(True), nodes.ask(False)] == [A, C, C]


def test_all_are_asked_in_turn_as_long_as_they_tell_something_wrong():
    nodes = Told(A, B, C, view=dict.fromkeys((A, B, C, D), A))
    nodes.ask(False)
    for _ in range(3):
        nodes.ask(True)
    assert set(nodes.asked) == {A, B, C, D}


def test_a_node_that_left_the_cluster_is_forgotten():
    left = ("h", 9)
    nodes = Told(A, view={A: B})
    nodes.places.append(left)
    nodes.ask(False)
    assert left not in nodes.places and A in nodes.places


def test_that_nobody_knows_is_said_with_what_each_one_said():
    nodes = Told(A, B, view={A: NoMaster("is not well"), B: OSError("refused")})
    with pytest.raises(NoMaster, match="slot 7: h:1: is not well; h:2: refused"):
        nodes.ask(False)
    nodes.view = {A: B, B: B}
    assert nodes.ask(False) == B


def test_a_term_ends_once_however_many_connections_say_so():
    master = Master(lambda _: A)
    _, term = master.find()
    for _ in range(3):
        master.doubt(term, is_other=True)
    assert master.term == term + 1


def test_a_connection_that_is_lost_ends_no_term_and_another_place_does():
    place = [A]
    master = Master(lambda _: place[0])
    _, term = master.find()
    master.doubt(term, is_other=False)
    assert master.find() == (A, term)
    place[0] = B
    assert master.find() == (B, term + 1)


def test_a_doubt_is_told_to_the_next_asked_and_to_no_other():
    wrong = []
    master = Master(lambda was_wrong: wrong.append(was_wrong) or A)
    _, term = master.find()
    master.doubt(term, is_other=True)
    master.find()
    master.find()
    assert wrong == [False, True, False]


def test_those_who_come_while_somebody_asks_get_the_same_answer():
    asking, answer, asked = threading.Event(), threading.Event(), []

    def ask(_):
        asked.append(1)
        asking.set()
        assert answer.wait(10)
        return A

    master, found = Master(ask), []
    threads = [threading.Thread(target=lambda: found.append(master.find()))]
    threads[0].start()
    assert asking.wait(10)
    came = threading.Barrier(6)

    def come():
        came.wait(10)
        found.append(master.find())

    threads += [threading.Thread(target=come) for _ in range(5)]
    for thread in threads[1:]:
        thread.start()
    came.wait(10)
    time.sleep(0.2)  # they come to the lock; one that is later asks itself
    answer.set()
    for thread in threads:
        thread.join(10)
    assert len(set(found)) == 1 and len(found) == 6 and len(asked) < 6


def test_a_failure_is_everybodys_too():
    """Forty threads of a door must not wait for three dead Sentinels one after the other."""
    asking, fail = threading.Event(), threading.Event()

    def ask(_):
        asking.set()
        assert fail.wait(10)
        raise OSError("nobody")

    master, failures = Master(ask), []

    def come():
        try:
            master.find()
        except (NoMaster, OSError) as error:
            failures.append(type(error))

    threads = [threading.Thread(target=come) for _ in range(5)]
    for thread in threads:
        thread.start()
        assert asking.wait(10)
    time.sleep(0.2)
    fail.set()
    for thread in threads:
        thread.join(10)
    assert len(failures) == 5 and NoMaster in failures
