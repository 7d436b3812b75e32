"""Sessions' files are asked for beside the router's work, which never waits for them."""

import threading

from router.prefetch import WAITING_MAX, Prefetch


def test_every_session_is_fetched():
    told = []
    prefetch = Prefetch(lambda: lambda tenant, session: told.append((tenant, session)))
    prefetch.ask("default", "a")
    prefetch.ask("t", "b")
    prefetch.asked.join()
    assert told == [("default", "a"), ("t", "b")]


def test_no_thread_and_no_file_before_the_first_session():
    opened = []
    prefetch = Prefetch(lambda: opened.append(1) or (lambda *_: None))
    assert (prefetch.thread, opened) == (None, [])
    prefetch.ask("default", "a")
    prefetch.ask("default", "b")
    prefetch.asked.join()
    assert opened == [1]


def test_a_disk_that_fails_is_tried_again_with_the_next_session():
    told, broken = [], [OSError("the disk is away")]

    def make():
        if broken:
            raise broken.pop()
        return lambda tenant, session: told.append(session)

    prefetch = Prefetch(make)
    for session in "ab":
        prefetch.ask("default", session)
        prefetch.asked.join()
    assert told == ["b"]


def test_a_disk_that_hangs_holds_nobody_up():
    go, told = threading.Event(), []
    prefetch = Prefetch(lambda: lambda tenant, session: go.wait(30) and told.append(session))
    for number in range(3 * WAITING_MAX):
        prefetch.ask("default", str(number))
    go.set()
    prefetch.asked.join()
    assert WAITING_MAX <= len(told) <= WAITING_MAX + 1
