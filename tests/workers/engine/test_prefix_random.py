"""Any interleaving of requests that begin alike, suspend, move, are cancelled, abandoned, evicted:
each says what it says alone, and no block or slot is lost.

The models assert at every token that KV and state are those of the tokens before (fake.py).
"""

from contextlib import suppress

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.workers.engine.fake import FakeClock, make_request
from tests.workers.engine.prefixes import (
    Files,
    PagedModel,
    PagedRecurrentModel,
    prompt_of,
    sharing_engine,
)
from tests.workers.engine.test_law_one import judged
from tests.workers.engine.test_reuse import uncached
from workers.engine.engine import Engine, StepAbandoned
from workers.wire import EndEvent

ROOTS = [prompt_of(700), [*prompt_of(300), *prompt_of(400, 40)], prompt_of(700, 7)]
ACTS = [
    *("step", "step", "step", "add", "add", "continue", "continue", "spill", "spill"),
    *("suspend", "resume", "release", "cancel", "drop", "preempt", "abandon", "evict", "write"),
    *("behind", "behind"),
]
ACT = st.tuples(st.sampled_from(ACTS), st.integers(0, 700), st.integers(0, 6))
PLAN = st.fixed_dictionaries(
    {
        "max_batch": st.integers(1, 4),
        "max_step_tokens": st.integers(30, 400),
        "num_blocks": st.integers(4, 12),
        "num_state_slots": st.integers(2, 8),
    }
)


class Play:
    """Requests in an engine, what each has said, and what is held of those that left."""

    def __init__(self, model, plan: dict, files: Files) -> None:
        self.leaves, self.files = False, files
        self.engine = sharing_engine(model(FakeClock()), after_layer=self._after_layer, **plan)
        self.engine._behind.step_tokens = 256
        self.requests: dict = {}
        self.said: dict[str, list] = {}
        self.suspended: dict = {}  # request id -> Kept or None, once it is released
        self.ended: list = []  # Kepts of those that have ended
        self.behind: list = []  # Kepts of those that go on
        self.turns: list = []  # the same, held or not
        self.gone: set[str] = set()
        self.ends: set[int] = set()  # positions at which files may hold something

    def _after_layer(self) -> None:
        if self.leaves:
            self.leaves = False
            raise StepAbandoned

    def do(self, act: str, number: int, which: int) -> None:
        getattr(self, f"_{act}")(number, which)
        self.engine.check()

    def running(self, which: int) -> str | None:
        here = sorted(self.engine._sequences)
        return here[which % len(here)] if here else None

    def _step(self, number: int, which: int) -> None:
        with suppress(StepAbandoned):
            for output in self.engine.step():
                self.said[output.request_id].append(uncached(output.event))
                if output.kept is not None:
                    self.ended.append(output.kept)
                    self.turns.append(output.kept)

    def _abandon(self, number: int, which: int) -> None:
        self.leaves = True
        self._step(number, which)
        self.leaves = False

    def _add(self, number: int, which: int) -> None:
        root = ROOTS[which % 3]
        self._begin(root[: 1 + number * 37 % 700], "them" if which == 5 else "default", number)

    def _continue(self, number: int, which: int) -> None:
        """The next turn, a fork, of one that has ended."""
        if self.turns:
            kept = self.turns[which % len(self.turns)]
            ids = [*kept.token_ids, *prompt_of(1 + number % 40, which)]
            if len(ids) < 900:
                self._begin(ids, kept.request.tenant, number)

    def _begin(self, ids: list[int], tenant: str, number: int) -> None:
        name = f"r{len(self.requests)}"
        request = make_request(
            name, ids, max_tokens=1 + number % 20, seed=number, temperature=0.7 * (number % 2)
        )
        request = msgspec.structs.replace(request, tenant=tenant)
        self.requests[name], self.said[name] = request, []
        self._enter(name, keep=number % 3 > 0)

    def _enter(self, name: str, *, keep: bool) -> None:
        request = self.requests[name]
        journal = self.said[name]
        ids = [*request.token_ids, *(event.token_id for event in journal)]
        prefix = self.files.prefix(self.engine, request, ids, sorted(self.ends))
        self.engine.add(request, journal, prefix=prefix, keep=keep, behind=keep)

    def _suspend(self, number: int, which: int) -> None:
        name = self.running(which)
        if name is not None:
            self.suspended[name] = self.engine.suspend(name)

    def _resume(self, number: int, which: int) -> None:
        """While its memory is held, or after."""
        if self.suspended:
            name = sorted(self.suspended)[which % len(self.suspended)]
            kept = self.suspended.pop(name)
            if number % 2 or kept is None:
                self._enter(name, keep=True)
                self._let_go(kept)
            else:
                self._let_go(kept)
                self._enter(name, keep=True)

    def _let_go(self, kept) -> None:
        if kept is not None:
            self.engine.release(kept)

    def _release(self, number: int, which: int) -> None:
        if number % 2 and self.ended:
            self._let_go(self.ended.pop(which % len(self.ended)))
        elif self.suspended:
            name = sorted(self.suspended)[which % len(self.suspended)]
            self._let_go(self.suspended[name])
            self.suspended[name] = None

    def _write(self, number: int, which: int) -> None:
        held = [*self.ended, *(kept for kept in self.suspended.values() if kept is not None)]
        if held:
            kept = held[which % len(held)]
            self.files.write(self.engine, kept, state=number % 3 > 0)
            self.ends.add(kept.num_kv)
            if number % 2 and kept in self.ended:
                self.ended.remove(kept)
                self._let_go(kept)

    def _behind(self, number: int, which: int) -> None:
        """What is completed is handed out, written sooner or later, or not at all."""
        kepts = self.engine.behind((None, 0)[number % 2])
        assert all(kept.tail is None and kept.num_kv == 256 * len(kept.blocks) for kept in kepts)
        self.behind += kepts
        self.ends.update(kept.num_kv for kept in kepts)
        while self.behind and number % 3:
            kept = self.behind.pop()
            if number % 3 == 1:
                self.files.write(self.engine, kept)
            self._let_go(kept)

    def _cancel(self, number: int, which: int) -> None:
        name = self.running(which)
        if name is not None and number % 4 == 0:
            self.engine.cancel(name)

    def _drop(self, number: int, which: int) -> None:
        name = self.running(which)
        if name is not None and number % 4 == 0:
            self.engine.drop(name)
            self.gone.add(name)

    def _preempt(self, number: int, which: int) -> None:
        name = self.running(which)
        if name is not None:
            self.engine.preempt(name)

    def _evict(self, number: int, which: int) -> None:
        """Some or all of what is cached has made room."""
        pool, states = self.engine._memory.pool, self.engine._memory.states
        for block_id in pool.cached_blocks()[: None if number % 3 else which + 1]:
            pool.forget(block_id)
        if states is not None and number % 2:
            states.forget_all()

    def _spill(self, number: int, which: int) -> None:
        """All that has ended is in files alone."""
        while self.ended:
            kept = self.ended.pop()
            self.files.write(self.engine, kept)
            self.ends.add(kept.num_kv)
            self._let_go(kept)
        self._evict(1, which)

    def finish(self) -> None:
        """Whatever is held is released; whoever was suspended comes back; all end."""
        for number in range(10_000):
            while self.ended or self.behind:
                self._let_go((self.ended or self.behind).pop())
            self._resume(number, 0)
            if not self.engine.has_work():
                if not self.suspended and not self.ended:
                    return
                continue
            self.do("step", number, 0)
        raise AssertionError(f"still at work: {self.engine.load()}")


@pytest.mark.parametrize("model", [PagedModel, PagedRecurrentModel])
@settings(max_examples=60)
@given(PLAN, st.lists(ACT, min_size=20, max_size=100))
def test_any_interleaving_says_what_each_says_alone(tmp_path_factory, model, plan, acts):
    play = Play(model, plan, Files(tmp_path_factory.mktemp("kv")))
    for act, number, which in acts:
        play.do(act, number, which)
    play.finish()
    for name, request in play.requests.items():
        got, expected = play.said[name], judged(request)
        if name in play.gone or too_large_here(play.engine, request):
            assert got[: len(expected)] == expected[: len(got)] or got[-1].code == "too_large"
        elif isinstance(got[-1], EndEvent) and got[-1].status == "cancelled":
            assert got[:-1] == expected[: len(got) - 1]
        else:
            assert got == expected
    load = play.engine.load()
    assert load.free_blocks == load.total_blocks
    states = play.engine._memory.states
    assert states is None or (states.num_held, states.num_pins) == (0, 0)


def too_large_here(engine: Engine, request) -> bool:
    wanted = -(-(len(request.token_ids) + request.params.max_tokens) // 256)
    return wanted > engine.load().total_blocks
