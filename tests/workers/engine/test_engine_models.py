"""Law one for every architecture, through the engine, on the CPU.

Hypothesis draws batch, chunks, threads, the order of arrival, which steps are abandoned, who is
preempted and where a request changes its owner. The judge is each request alone, on one thread,
with its prompt in one piece.
"""

import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.cpu.host import CpuOps
from tests.workers.engine.fake import make_request, no_layer
from tests.workers.engine.test_law_one import same
from workers.engine.engine import Engine, StepAbandoned
from workers.engine.limits import EngineLimits
from workers.model.build import load_model
from workers.text.text_model import TextModel

GOLDEN = Path(__file__).parents[2] / "golden"
MODELS = ["tiny_gemma3", "tiny_qwen2", "tiny_qwen3", "tiny_qwen35"]  # llama: test_engine_llama.py
LENGTHS = (300, 1, 77, 33, 250, 65)  # a block of KV is 256
NUM_BLOCKS = 16


class Machine:
    """Engines over one model, and what each request says when it is alone."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.text = folder, TextModel.load(folder)
        self.ids = (np.load(GOLDEN / f"{name}.npz")["long_ids"].tolist()) * 2
        self.requests = [self._request(index) for index in range(len(LENGTHS))]
        self.judged = [self._alone(request) for request in self.requests]

    def _request(self, index: int):
        kinds = ({"temperature": 0}, {"top_p": 0.9, "logprobs": 3}, {"top_k": 40, "min_p": 0.02})
        ids = self.ids[3 * index : 3 * index + LENGTHS[index]]
        return make_request(f"r{index}", ids, max_tokens=8, seed=index, **kinds[index % 3])

    def _alone(self, request):
        engine = self.engine(1, 1, 400, None, no_layer)
        engine.add(request)
        events = []
        while engine.has_work():
            events += [same(output.event) for output in engine.step()]
        return events

    def engine(self, threads, max_batch, step_tokens, num_slots, after_layer) -> Engine:
        ops = CpuOps(threads)
        model = load_model(self.folder, ops, max_step_tokens=step_tokens, max_logit_rows=max_batch)
        limits = EngineLimits(
            max_batch, step_tokens, 100_000, NUM_BLOCKS, num_state_slots=num_slots
        )
        engine = Engine(
            model,
            self.text,
            ops,
            limits,
            after_layer=after_layer,
            now_ms=lambda: time.time_ns() // 10**6,
        )
        engine._home.kv.blocks[...] = np.nan  # what earlier owners left is never read
        if engine._state is not None:
            engine._home.state.conv[...] = engine._home.state.delta[...] = np.nan
        return engine


@pytest.fixture(scope="module", params=MODELS)
def machine(request, tiny_home) -> Machine:
    return Machine(tiny_home / "models" / request.param, request.param)


class Abandons:
    """An after_layer that raises at these layers, counted from the first step on."""

    def __init__(self, layers: set[int]) -> None:
        self.layers, self.count = layers, 0

    def __call__(self) -> None:
        self.count += 1
        if self.count in self.layers:
            raise StepAbandoned


def test_the_judge_has_something_to_say(machine):
    digests = {events[-1].digest for events in machine.judged}
    assert len(digests) == len(LENGTHS)
    assert all(events[-1].status == "finished" for events in machine.judged)


@settings(max_examples=12)
@given(data=st.data())
def test_the_same_bits_whatever_happens(machine, data):
    max_batch = data.draw(st.integers(1, 6), label="max_batch")
    engine = machine.engine(
        data.draw(st.integers(1, 4), label="threads"),
        max_batch,
        data.draw(st.integers(max(16, max_batch), 400), label="step_tokens"),
        data.draw(st.integers(1, 12), label="state slots"),
        Abandons(data.draw(st.sets(st.integers(1, 160), max_size=6), label="abandoned layers")),
    )
    order = data.draw(st.permutations(range(len(LENGTHS))), label="order")
    arrives = [data.draw(st.integers(0, 6)) for _ in order]
    preempted = data.draw(st.dictionaries(st.integers(0, 40), st.integers(0, 5)), label="preempted")
    moves = data.draw(st.dictionaries(st.integers(1, 40), st.integers(0, 5)), label="new owners")
    events = {f"r{index}": [] for index in order}
    for turn in range(10_000):
        if turn > 6 and not engine.has_work():
            break
        for index, arrival in zip(order, arrives, strict=True):
            if arrival == turn:
                engine.add(machine.requests[index])
        if turn in preempted:
            engine.preempt(f"r{preempted[turn]}")
        if turn in moves:
            take_over(engine, machine.requests[moves[turn]], events)
        with suppress(StepAbandoned):
            for output in engine.step():
                events[output.request_id].append(same(output.event))
        engine.check()
    for index in order:
        assert events[f"r{index}"] == machine.judged[index]
    assert engine.load().free_blocks == NUM_BLOCKS
    assert engine._state is None or engine._state.pool.num_held == 0


def take_over(engine: Engine, request, events) -> None:
    """As if its owner had died: it comes back with its journal."""
    if request.id in engine._sequences:
        engine.drop(request.id)
        engine.add(request, events[request.id])
