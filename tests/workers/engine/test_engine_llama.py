"""Law one with a real model on the CPU: batch, chunks, threads and old memory change no bit.

The judge is each request alone, on one thread, with its prompt in one piece.
"""

import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.cpu.host import CpuOps
from tests.workers.engine.fake import ids_of, make_request, no_layer
from tests.workers.engine.test_law_one import same
from workers.engine.engine import Engine
from workers.engine.limits import EngineLimits
from workers.model.build import load_model
from workers.text.text_model import TextModel

GOLDEN = Path(__file__).parents[2] / "golden"
NUM_REQUESTS = 16
MAX_STEP_TOKENS = 400


class Machine:
    """Engines over one folder, each with its own thread count and chunks."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.text = folder, TextModel.load(folder)
        golden = np.load(GOLDEN / "tiny_llama.npz")
        self.long_ids = golden["long_ids"].tolist()
        self.requests = [self._request(i) for i in range(NUM_REQUESTS)]
        self.judged = [self.run([request])[request.id] for request in self.requests]

    def _request(self, index: int):
        begin, length = 3 * index, (300, 1, 77, 33, 250, 65, 128, 9)[index % 8]  # 256 is a block
        ids = [*(self.long_ids * 3)[begin : begin + length], index + 5]
        kinds = ({"temperature": 0}, {"top_p": 0.9, "logprobs": 3}, {"top_k": 40, "min_p": 0.02})
        return make_request(f"r{index}", ids, max_tokens=12, seed=index, **kinds[index % 3])

    def engine(self, threads: int, max_batch: int, step_tokens: int, on_logits=None) -> Engine:
        ops = CpuOps(threads)
        rows = step_tokens if on_logits else max_batch
        model = load_model(self.folder, ops, max_step_tokens=step_tokens, max_logit_rows=rows)
        limits = EngineLimits(max_batch, step_tokens, 100_000, num_blocks=20)
        engine = Engine(
            model,
            self.text,
            ops,
            limits,
            after_layer=no_layer,
            now_ms=lambda: time.time_ns() // 10**6,
            on_logits=on_logits,
        )
        engine._home.kv.blocks[...] = np.nan  # what earlier owners of a block left is never read
        return engine

    def run(self, requests, threads=1, max_batch=NUM_REQUESTS, step_tokens=MAX_STEP_TOKENS) -> dict:
        engine = self.engine(threads, max_batch, step_tokens)
        for request in requests:
            engine.add(request)
        events = {request.id: [] for request in requests}
        while engine.has_work():
            for output in engine.step():
                events[output.request_id].append(same(output.event))
            engine.check()
        return events


@pytest.fixture(scope="module")
def machine(tiny_home) -> Machine:
    return Machine(tiny_home / "models" / "tiny_llama")


def test_the_judge_has_something_to_say(machine):
    digests = {events[-1].digest for events in machine.judged}
    assert len(digests) == NUM_REQUESTS
    assert all(events[-1].status == "finished" for events in machine.judged)


@pytest.mark.parametrize("size", range(1, NUM_REQUESTS + 1))
def test_the_same_bits_in_every_batch_size(machine, size):
    events = machine.run(machine.requests[:size], threads=2)
    assert [events[r.id] for r in machine.requests[:size]] == machine.judged[:size]


@pytest.mark.parametrize("threads", [1, 2, 3, 4, 7])
def test_the_same_bits_on_every_number_of_threads(machine, threads):
    events = machine.run(machine.requests[:5], threads)
    assert [events[r.id] for r in machine.requests[:5]] == machine.judged[:5]


@settings(max_examples=15)
@given(
    st.integers(1, 4),
    st.integers(1, 16),
    st.integers(16, MAX_STEP_TOKENS),
    st.permutations(range(NUM_REQUESTS)),
)
def test_the_same_bits_for_every_cut_and_order(machine, threads, max_batch, step_tokens, order):
    chosen = order[:6]
    events = machine.run([machine.requests[i] for i in chosen], threads, max_batch, step_tokens)
    for index in chosen:
        assert events[f"r{index}"] == machine.judged[index]


@pytest.mark.parametrize("cut", [0, 1, 6, 11])
def test_the_same_bits_after_a_hand_over(machine, cut):
    request, judged = machine.requests[0], machine.judged[0]
    engine = machine.engine(2, 4, 50)
    engine.add(request, judged[:cut])
    events = []
    while engine.has_work():
        events += [same(output.event) for output in engine.step()]
    assert events == judged[cut:]


def test_the_same_logits_for_every_chunk(machine):
    """All logits of a prompt, bit for bit, however it is cut and whoever runs beside it."""

    def logits_of(threads: int, step_tokens: int, beside: bool) -> np.ndarray:
        rows = []
        engine = machine.engine(
            threads, 4, step_tokens, lambda _, __, some: rows.append(some.copy())
        )
        if beside:
            engine.add(machine.requests[2])
            engine.step()
        engine.add(
            make_request("w", machine.long_ids, max_tokens=1, temperature=0), every_logit=True
        )
        while engine.has_work():
            engine.step()
        return np.concatenate(rows)

    expected = logits_of(1, 400, beside=False)
    assert expected.shape == (200, machine.text.vocab_size)
    for threads, step_tokens, beside in [(1, 64, False), (2, 17, True), (2, 4, True)]:
        got = logits_of(threads, step_tokens, beside)
        assert np.array_equal(got.view(np.uint32), expected.view(np.uint32))


def test_greedy_goes_with_the_golden_run_while_its_margin_is_clear(machine):
    golden = np.load(GOLDEN / "tiny_llama.npz")
    prompt, full = golden["prompt_ids"].tolist(), golden["full_logits"]
    engine = machine.engine(2, 4, 64)
    engine.add(make_request("g", prompt, max_tokens=16, temperature=0))
    events = []
    while engine.has_work():
        events += [output.event for output in engine.step()]
    top = np.sort(full[len(prompt) - 1 : -1], axis=1)
    clear = np.cumprod(top[:, -1] - top[:, -2] > 0.5).sum()
    assert clear >= 1
    assert ids_of(events)[:clear] == golden["greedy_ids"].tolist()[:clear]
