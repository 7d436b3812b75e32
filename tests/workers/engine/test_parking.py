"""Memory that a more urgent request needs: its holder's KV goes into files, and comes back."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.workers.engine.fake import FakeClock, ids_of, make_request
from tests.workers.engine.prefixes import (
    Computed,
    Files,
    PagedModel,
    PagedRecurrentModel,
    prompt_of,
    sharing_engine,
)
from tests.workers.engine.test_law_one import judged
from tests.workers.engine.test_reuse import uncached
from workers.engine.kept import Kept

MODELS = {"attention": PagedModel, "recurrent": PagedRecurrentModel}


class Driver:
    """Drives an engine as a pool does; what is parked is written and read when the test says."""

    def __init__(self, root, model, **wanted) -> None:
        self.engine = sharing_engine(model(FakeClock()), **({"num_blocks": 4} | wanted))
        self.files = Files(root)
        self.events: dict[str, list] = {}
        self.requests: dict = {}
        self.leaving: list[Kept] = []
        self.coming: list[str] = []
        self.kept: dict[str, tuple[list[int], int]] = {}
        self.parked: list[str] = []

    def add(
        self,
        name: str,
        num_prompt: int,
        max_tokens: int = 4,
        sla: str = "standard",
        *,
        lasts: bool = False,
    ) -> None:
        """lasts: with a seed with which it takes all of max_tokens."""
        prompt, seed = prompt_of(num_prompt, len(self.requests)), 0
        request = make_request(name, prompt, max_tokens=max_tokens, sla=sla)
        while lasts and len(judged(request)) <= max_tokens:
            seed += 1
            request = make_request(name, prompt, max_tokens=max_tokens, sla=sla, seed=seed)
        self.requests[name] = request
        self.events[name] = []
        self.engine.add(self.requests[name])

    def park(self) -> None:
        for name in self.engine.parking.displaced():
            self.parked.append(name)
            kept = self.engine.parking.park(name)
            self.engine.check()
            if kept is not None:
                self.kept[name] = list(kept.token_ids), kept.num_kv
                self.leaving.append(kept)

    def write(self) -> None:
        for kept in self.leaving:
            self.files.write(self.engine, kept)
            self.engine.release(kept)
            self.engine.parking.written(kept.request.id)
        self.leaving = []

    def ask_back(self) -> None:
        name = self.engine.parking.returning()
        if name is not None:
            self.coming.append(name)

    def bring_back(self) -> None:
        for name in self.coming:
            tokens, num_kv = self.kept[name]
            prefix = self.files.prefix(self.engine, make_request(name), tokens, [num_kv])
            self.engine.parking.bring_back(name, prefix)
        self.coming = []

    def step(self) -> None:
        for output in self.engine.step():
            self.events[output.request_id].append(output.event)
        self.engine.check()

    def turn(self) -> None:
        self.park()
        self.write()
        self.ask_back()
        self.bring_back()
        if self.engine.has_work():
            self.step()

    def run(self) -> None:
        for _ in range(5000):
            if not self.engine._sequences:
                return
            self.turn()
        raise AssertionError(f"still at work: {self.engine.load()}")

    def running(self) -> list[str]:
        return [sequence.id for sequence in self.engine._scheduler.running]

    def check_answers(self) -> None:
        for name, request in self.requests.items():
            assert [uncached(e) for e in self.events[name]] == judged(request), name


@pytest.fixture(params=sorted(MODELS))
def driver(request, tmp_path):
    return Driver(tmp_path, MODELS[request.param])


def test_an_urgent_one_gets_the_memory_of_a_running_one_at_once(driver):
    """field.md 5: "out-of-KV result is noticed after the preemption check, so urgent work is never
    admitted"."""
    driver.add("long", 600, 60, sla="batch", lasts=True)
    for _ in range(20):
        driver.turn()
    assert driver.running() == ["long"]
    driver.add("urgent", 300, sla="realtime")
    driver.turn()
    assert driver.parked == ["long"]
    driver.turn()
    assert driver.running() == ["urgent"]
    driver.run()
    driver.check_answers()


def test_what_was_displaced_is_never_computed_again(driver):
    """field.md 2: "a preempted request loses its place, its KV is evicted, work is redone"."""
    computed = Computed(driver.engine)
    driver.add("long", 600, 60, sla="batch", lasts=True)
    for index in range(5):
        for _ in range(15):
            driver.turn()
        driver.add(f"urgent{index}", 700, 3, sla="realtime")
    driver.run()
    driver.check_answers()
    assert driver.parked == ["long"] * 5
    num_output = {name: len(ids_of(events)) for name, events in driver.events.items()}
    wanted = 600 + 5 * 700 + sum(n - 1 for n in num_output.values())
    assert computed.tokens() == wanted


def test_only_as_many_give_way_as_are_needed_the_least_urgent_first(driver):
    for name, sla in (("a", "standard"), ("b", "batch"), ("c", "batch")):
        driver.add(name, 100, 60, sla=sla, lasts=True)
    for _ in range(6):
        driver.turn()
    driver.add("urgent", 300, sla="realtime")  # one block is free, and it wants two
    driver.turn()
    assert driver.parked == ["c"]
    driver.run()
    driver.check_answers()


def test_nobody_gives_way_where_that_would_not_be_enough(driver):
    driver.add("same", 400, 50, sla="realtime", lasts=True)
    driver.add("less", 100, 50, sla="batch", lasts=True)
    for _ in range(10):
        driver.turn()
    driver.add("big", 900, sla="realtime")
    for _ in range(10):
        driver.turn()
    assert driver.parked == []
    driver.run()
    driver.check_answers()


def test_an_engine_whose_memory_is_all_on_its_way_to_files_says_so(driver):
    """Whoever drives it waits for the release instead of asking again and again."""
    driver.add("long", 600, 60, sla="batch", lasts=True)
    driver.step()
    driver.add("urgent", 600, 300, sla="realtime")
    driver.park()
    driver.step()
    assert (driver.running(), driver.engine.is_stalled) == ([], True)
    driver.write()
    driver.step()
    assert (driver.running(), driver.engine.is_stalled) == (["urgent"], False)


def test_one_that_had_computed_nothing_leaves_nothing_to_write(driver):
    driver.add("late", 600, 60, sla="batch", lasts=True)
    driver.engine._scheduler.admit(0)
    driver.add("urgent", 300, sla="realtime")
    driver.park()
    assert (driver.parked, driver.leaving) == (["late"], [])
    driver.run()
    driver.check_answers()


@pytest.mark.parametrize("when", ["leaving", "coming"])
@pytest.mark.parametrize("how", ["cancel", "drop"])
def test_what_ends_on_its_way_to_or_from_files_holds_nothing(driver, when, how):
    driver.add("long", 600, 60, sla="batch", lasts=True)
    for _ in range(20):
        driver.turn()
    driver.add("urgent", 300, 5, sla="realtime")
    driver.park()
    if when == "coming":
        driver.write()
        while not driver.coming:
            driver.step()
            driver.ask_back()
    getattr(driver.engine, how)("long")
    driver.run()
    driver.write()
    driver.bring_back()
    driver.engine.check()
    statuses = [event.status for event in driver.events["long"][-1:] if hasattr(event, "status")]
    assert statuses == (["cancelled"] if how == "cancel" else [])
    assert driver.engine.load().free_blocks == 4


def test_a_disk_that_kept_nothing_costs_time_and_no_answer(driver):
    driver.add("long", 600, 60, sla="batch", lasts=True)
    for _ in range(20):
        driver.turn()
    driver.add("urgent", 900, sla="realtime")
    driver.park()
    [kept] = driver.leaving
    driver.engine.release(kept)
    driver.engine.parking.written("long")
    driver.leaving = []
    while driver.running():
        driver.step()
    driver.ask_back()
    driver.engine.parking.bring_back("long", None)
    driver.coming = []
    driver.run()
    driver.check_answers()


def test_an_engine_that_writes_nothing_lets_the_urgent_one_wait(driver):
    driver.add("long", 600, 50, sla="batch", lasts=True)
    for _ in range(12):
        driver.step()
    driver.add("urgent", 300, sla="realtime")
    while driver.engine.has_work():
        driver.step()
    driver.check_answers()
    assert len(driver.events["urgent"]) > 0


PLAN = st.lists(
    st.tuples(
        st.integers(0, 30),
        st.integers(1, 700),
        st.integers(1, 60),
        st.sampled_from(["realtime", "standard", "batch"]),
    ),
    min_size=2,
    max_size=8,
)


@settings(max_examples=15)
@given(PLAN, st.sampled_from(sorted(MODELS)), st.randoms(use_true_random=False))
def test_any_arrivals_and_any_disk_give_the_same_answers_and_nothing_twice(
    tmp_path_factory, plan, model, chance
):
    """Writing and reading take any number of steps; each of them may come when it likes."""
    root = tmp_path_factory.mktemp("files")
    driver = Driver(root, MODELS[model], num_blocks=5, max_batch=3)
    computed = Computed(driver.engine)
    for index, (steps, num_prompt, max_tokens, sla) in enumerate(plan):
        driver.add(f"r{index}", num_prompt, max_tokens, sla)
        for _ in range(steps):
            driver.park()
            for late in (driver.write, driver.ask_back, driver.bring_back):
                if chance.random() < 0.4:
                    late()
            if driver.engine.has_work():
                driver.step()
    driver.run()
    driver.check_answers()
    outputs = [len(ids_of(events)) for events in driver.events.values()]
    wanted = sum(len(r.token_ids) for r in driver.requests.values()) + sum(outputs) - len(outputs)
    assert computed.tokens() <= wanted
    assert driver.engine.load().free_blocks == 5


def test_who_waits_for_a_place_is_not_short_of_memory(tmp_path):
    """A pool lets go of what it holds for writing when memory is short, and only then."""
    engine = sharing_engine(PagedModel(FakeClock()), num_blocks=4, max_batch=1)
    engine.add(make_request("a", prompt_of(20), max_tokens=4, sla="batch"))
    engine.step()
    engine.add(make_request("b", prompt_of(20, 2), max_tokens=4, sla="realtime"))
    engine.step()
    assert (engine.load().running, engine.load().waiting, engine.load().is_short) == (1, 1, False)
    engine.drop("a"), engine.drop("b")
    engine.add(make_request("c", prompt_of(700), max_tokens=4))
    engine.add(make_request("d", prompt_of(700, 2), max_tokens=4))
    engine.step()
    assert (engine.load().waiting, engine.load().is_short) == (1, False), "the batch is full"
