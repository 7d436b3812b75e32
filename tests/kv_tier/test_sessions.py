"""Sessions: one head, one writer, and names that are not paths."""

import itertools
import multiprocessing
import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from hypothesis.strategies import integers

from kv_tier.format import NewerVersion, with_sum
from kv_tier.manifest import Manifest, encode_manifest
from kv_tier.sessions import BadName, Sessions, StaleFence, fence_name, manifest_name
from tests.kv_tier.conversation import manifest_after

TENANT, SESSION = "default", "talk"
ROUNDS = 40


def committed(sessions: Sessions, generations: int) -> Manifest:
    """A session with so many generations, by one writer."""
    fence = sessions.take(TENANT, SESSION, 0)
    for generation in range(1, generations + 1):
        manifest = manifest_after(generation, generation, fence)
        sessions.commit(manifest)
    return manifest


def names(sessions: Sessions) -> list[str]:
    return sorted(os.listdir(sessions.folder(TENANT, SESSION)))


def test_the_head_is_the_last_commit(tmp_path):
    sessions = Sessions(tmp_path)
    assert sessions.head(TENANT, SESSION) is None
    assert committed(sessions, 3) == sessions.head(TENANT, SESSION)
    assert Sessions(tmp_path).head(TENANT, SESSION) == sessions.head(TENANT, SESSION)


def test_the_generation_before_the_head_stays_and_older_ones_go(tmp_path):
    sessions = Sessions(tmp_path)
    committed(sessions, 5)
    assert names(sessions) == [fence_name(1), manifest_name(4), manifest_name(5)]


def test_a_damaged_generation_is_passed_over_and_can_be_written_anew(tmp_path):
    sessions = Sessions(tmp_path)
    last = committed(sessions, 5)
    path = sessions.folder(TENANT, SESSION) / manifest_name(5)
    path.write_bytes(path.read_bytes()[:-1])
    assert sessions.head(TENANT, SESSION) == manifest_after(4, 4, 1)
    sessions.commit(last)
    assert sessions.head(TENANT, SESSION) == last


def test_a_manifest_of_another_session_is_passed_over(tmp_path):
    sessions = Sessions(tmp_path)
    committed(sessions, 1)
    other = encode_manifest(replace(manifest_after(2, 2, 1), session_id="other"))
    (sessions.folder(TENANT, SESSION) / manifest_name(2)).write_bytes(other)
    assert sessions.head(TENANT, SESSION) == manifest_after(1, 1, 1)


def test_a_head_of_a_newer_version_is_refused_and_not_replaced_by_an_older_one(tmp_path):
    sessions = Sessions(tmp_path)
    last = committed(sessions, 2)
    newer = bytearray(encode_manifest(replace(last, generation=3))[:-16])
    newer[8] = 2
    (sessions.folder(TENANT, SESSION) / manifest_name(3)).write_bytes(with_sum(bytes(newer)))
    with pytest.raises(NewerVersion):
        sessions.head(TENANT, SESSION)
    with pytest.raises(NewerVersion):
        sessions.commit(replace(last, generation=4))


def test_a_fence_is_given_out_once(tmp_path):
    sessions = Sessions(tmp_path)
    assert [sessions.take(TENANT, SESSION, asked) for asked in (1, 1, 7, 2)] == [1, 2, 7, 8]
    assert names(sessions) == [fence_name(8)]


def test_a_late_writer_is_refused(tmp_path):
    sessions = Sessions(tmp_path)
    late = sessions.take(TENANT, SESSION, 1)
    now = sessions.take(TENANT, SESSION, 2)
    with pytest.raises(StaleFence, match="fence 1, but 2 is the last taken"):
        sessions.commit(manifest_after(1, 1, late))
    sessions.commit(manifest_after(1, 1, now))
    with pytest.raises(StaleFence):
        sessions.commit(manifest_after(2, 2, late))
    assert sessions.head(TENANT, SESSION) == manifest_after(1, 1, now)


def test_a_fence_that_nobody_took_is_refused(tmp_path):
    sessions = Sessions(tmp_path)
    with pytest.raises(StaleFence):
        sessions.commit(manifest_after(1, 1, 5))
    sessions.take(TENANT, SESSION, 1)
    with pytest.raises(StaleFence):
        sessions.commit(manifest_after(1, 1, 5))
    assert sessions.head(TENANT, SESSION) is None


def test_a_generation_is_committed_once(tmp_path):
    sessions = Sessions(tmp_path)
    last = committed(sessions, 3)
    for generation in (1, 2, 3):
        with pytest.raises(StaleFence, match="generation 3 is there"):
            sessions.commit(replace(last, generation=generation))


def test_should_the_fence_be_lost_the_head_still_knows_its_writer(tmp_path):
    sessions = Sessions(tmp_path)
    sessions.take(TENANT, SESSION, 9)
    sessions.commit(manifest_after(1, 1, 9))
    (sessions.folder(TENANT, SESSION) / fence_name(9)).unlink()
    assert sessions.take(TENANT, SESSION, 1) == 10


def test_a_dropped_session_is_gone_and_its_writer_cannot_bring_it_back(tmp_path):
    sessions = Sessions(tmp_path)
    last = committed(sessions, 3)
    assert sessions.drop(TENANT, SESSION)
    assert sessions.head(TENANT, SESSION) is None
    assert list(sessions.ids()) == []
    with pytest.raises(StaleFence):
        sessions.commit(replace(last, generation=4))
    assert not sessions.drop(TENANT, SESSION)


def test_dropping_what_is_not_there_makes_nothing(tmp_path):
    assert not Sessions(tmp_path).drop(TENANT, SESSION)
    assert list(tmp_path.iterdir()) == []


def test_sweep_takes_dropped_sessions_and_unfinished_files_when_they_are_old(tmp_path):
    sessions = Sessions(tmp_path)
    last = committed(sessions, 1)
    sessions.take(TENANT, "dropped", 1)
    unfinished = sessions.folder(TENANT, SESSION) / ".tmp-1"
    unfinished.write_bytes(b"")
    assert sessions.sweep(before_ms=1000) == 0
    assert sessions.sweep(before_ms=1 << 42) == 2
    assert not unfinished.exists() and not sessions.folder(TENANT, "dropped").exists()
    assert sessions.head(TENANT, SESSION) == last
    sessions.commit(replace(last, generation=2))


def test_a_writer_that_waits_while_its_folder_is_swept_makes_a_new_one(tmp_path):
    sessions = Sessions(tmp_path)
    for _ in range(50):
        taken: list[int] = []
        threads = [
            threading.Thread(target=lambda t=taken: t.append(sessions.take(TENANT, SESSION, 0))),
            threading.Thread(target=lambda: sessions.sweep(before_ms=1 << 42)),
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(taken) == 1


def test_ids_lists_what_has_a_manifest(tmp_path):
    sessions = Sessions(tmp_path)
    for tenant, session_id in (("a", "x"), ("a", "y"), ("b", "x")):
        fence = sessions.take(tenant, session_id, 1)
        sessions.take(tenant, "taken-only", 1)
        manifest = replace(manifest_after(1, 1, fence), tenant=tenant, session_id=session_id)
        sessions.commit(manifest)
    assert set(sessions.ids()) == {("a", "x"), ("a", "y"), ("b", "x")}
    assert set(sessions.ids("a")) == {("a", "x"), ("a", "y")}
    assert set(sessions.ids("c")) == set()


@pytest.mark.parametrize(
    ("tenant", "session_id"),
    [
        ("default", "../../etc/passwd"),
        ("default", ".."),
        ("default", "."),
        ("default", ""),
        ("default", "a/b"),
        ("default", "a--b"),
        ("default", "a\n"),
        ("default", "a\0b"),
        ("default", "é"),
        ("default", "x" * 65),
        ("..", "talk"),
        ("", "talk"),
        ("Default", "talk"),
        ("x" * 33, "talk"),
    ],
)
def test_what_is_no_name_never_becomes_a_path(tmp_path, tenant, session_id):
    sessions = Sessions(tmp_path / "kv")
    for use in (sessions.head, sessions.drop, sessions.folder):
        with pytest.raises(BadName):
            use(tenant, session_id)
    with pytest.raises(BadName):
        sessions.take(tenant, session_id, 1)
    with pytest.raises(AssertionError):
        sessions.commit(replace(manifest_after(1, 1, 1), tenant=tenant, session_id=session_id))
    assert list(tmp_path.iterdir()) == []


def race(root: Path, seed: int, results: "multiprocessing.SimpleQueue[list[int]]") -> None:
    """Take, look, commit, again and again; the generations that were committed."""
    sessions, mine = Sessions(root), []
    for _ in range(ROUNDS):
        fence = sessions.take(TENANT, SESSION, 0)
        for _ in range(seed):
            head = sessions.head(TENANT, SESSION)
            generation = head.generation + 1 if head else 1
            try:
                sessions.commit(manifest_after(generation, generation, fence))
            except StaleFence:
                break
            mine.append(generation)
    results.put(mine)


def test_two_processes_never_commit_the_same_generation(scratch):
    context = multiprocessing.get_context("spawn")
    results = context.SimpleQueue()
    children = [context.Process(target=race, args=(scratch, n, results)) for n in (1, 3)]
    for child in children:
        child.start()
    committed = results.get() + results.get()
    for child in children:
        child.join()
    assert sorted(committed) == list(range(1, len(committed) + 1))
    assert generation_of(scratch) == len(committed)
    fence = Sessions(scratch).take(TENANT, SESSION, 0)
    assert fence == 2 * ROUNDS + 1
    Sessions(scratch).commit(manifest_after(1, len(committed) + 1, fence))


def generation_of(root: Path) -> int:
    """How many commits there were; none may be, if each was always overtaken."""
    head = Sessions(root).head(TENANT, SESSION)
    return head.generation if head else 0


class Writers(RuleBasedStateMachine):
    """Any order of what several writers do, beside what must come of it."""

    def __init__(self) -> None:
        super().__init__()
        self.name = f"machine-{next(NUMBERS)}"
        self.fences = [0, 0, 0]
        self.known = 0
        self.head: Manifest | None = None

    @rule(writer=integers(0, 2), asked=integers(0, 6))
    def take(self, writer: int, asked: int) -> None:
        self.known = max(asked, self.known + 1)
        self.fences[writer] = SESSIONS.take(TENANT, self.name, asked)
        assert self.known == self.fences[writer]

    @rule(writer=integers(0, 2), ahead=integers(-1, 2))
    def commit(self, writer: int, ahead: int) -> None:
        last = self.head.generation if self.head else 0
        manifest = manifest_after(1, max(1, last + ahead), max(1, self.fences[writer]))
        manifest = replace(manifest, session_id=self.name)
        if manifest.fence == self.known and manifest.generation > last:
            SESSIONS.commit(manifest)
            self.head = manifest
        else:
            with pytest.raises(StaleFence):
                SESSIONS.commit(manifest)

    @rule()
    def drop(self) -> None:
        assert SESSIONS.drop(TENANT, self.name) == (self.head is not None)
        self.known += self.known > 0
        self.head = None

    @invariant()
    def the_head_is_the_last_commit(self) -> None:
        assert self.head == SESSIONS.head(TENANT, self.name)


SESSIONS: Sessions
NUMBERS = itertools.count()


def test_whatever_the_order_only_the_last_fence_commits(scratch):
    global SESSIONS
    SESSIONS = Sessions(scratch)
    run_state_machine_as_test(Writers, settings=settings(max_examples=40, stateful_step_count=20))


def test_a_damaged_generation_is_told_until_a_newer_one_holds(tmp_path):
    sessions = Sessions(tmp_path)
    assert sessions.damaged(TENANT, SESSION) == 0
    last = committed(sessions, 5)
    assert sessions.damaged(TENANT, SESSION) == 0
    path = sessions.folder(TENANT, SESSION) / manifest_name(5)
    path.write_bytes(path.read_bytes()[:-1])
    assert sessions.damaged(TENANT, SESSION) == 5
    sessions.commit(last)
    assert sessions.damaged(TENANT, SESSION) == 0
