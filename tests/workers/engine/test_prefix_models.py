"""Law one for what is not computed again: every architecture says the same with and without.

Prefixes in memory, prefixes in mapped files, moves at every token boundary, forks, eviction: the
judge is each request alone, with an engine that shares nothing.
"""

import time
from contextlib import suppress
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from kernels.arrays import HOST, Arrays, Device
from kernels.cpu.host import CpuOps
from kernels.cuda.host import CudaOps
from tests.workers.engine.fake import make_request, no_layer
from tests.workers.engine.prefixes import Files, chains, events_of
from tests.workers.engine.test_engine_models import Abandons
from tests.workers.engine.test_reuse import cached, uncached
from workers.engine.engine import Engine, StepAbandoned
from workers.engine.limits import EngineLimits
from workers.engine.payload import sizes_of
from workers.model.build import load_model
from workers.text.text_model import TextModel
from workers.wire import TokenEvent

GOLDEN = Path(__file__).parents[2] / "golden"
MODELS = ["tiny_llama", "tiny_qwen2", "tiny_qwen3", "tiny_gemma3", "tiny_qwen35"]
NUM_BLOCKS = 16


class Machine:
    """Engines over one model that share what they compute, and one that does not."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.text = folder, TextModel.load(folder)
        self.ids = (np.load(GOLDEN / f"{name}.npz")["long_ids"].tolist()) * 6

    def engine(
        self,
        after_layer=no_layer,
        is_sharing: bool = True,
        step_tokens: int = 300,
        device: Device | None = None,
        **wanted,
    ) -> Engine:
        """device: None is the CPU; wanted: fields of EngineLimits"""
        ops, arrays = (CudaOps(device), device) if device else (CpuOps(2), HOST)
        model = load_model(
            self.folder, ops, max_step_tokens=step_tokens, max_logit_rows=4, arrays=arrays
        )
        limits = EngineLimits(
            **{
                "max_batch": 4,
                "max_step_tokens": step_tokens,
                "step_budget_ms": 100_000,
                "num_blocks": NUM_BLOCKS,
            }
            | wanted
        )
        sizes = sizes_of(model.config, self.text.weights_digest)
        engine = Engine(
            model,
            self.text,
            ops,
            limits,
            after_layer=after_layer,
            now_ms=lambda: time.time_ns() // 10**6,
            chain=chains(sizes) if is_sharing else None,
            arrays=arrays,
        )
        spoil(engine, arrays)
        return engine

    def judged(self, request) -> list:
        return self.say(self.engine(is_sharing=False), request)

    def say(self, engine: Engine, request, journal=(), prefix=None) -> list:
        engine.add(request, journal, prefix=prefix)
        return [uncached(output.event) for output in events_of(engine, request.id)]


def spoil(engine: Engine, arrays: Arrays) -> None:
    """What earlier owners left is never read."""
    home = engine._home
    rooms = [home.kv.blocks] + ([home.state.conv, home.state.delta] if home.state else [])
    for room in rooms:
        arrays.write(room, np.full(room.shape, np.nan, room.dtype))


@pytest.fixture(scope="module", params=MODELS)
def machine(request, tiny_home) -> Machine:
    return Machine(tiny_home / "models" / request.param, request.param)


@pytest.fixture
def files(tmp_path) -> Files:
    return Files(tmp_path)


def request_of(ids, request_id="r", **wanted):
    usual = {"max_tokens": 6, "temperature": 0.8, "seed": 5, "logprobs": 2}
    return make_request(request_id, ids, **(usual | wanted))


def computed_by(engine: Engine) -> int:
    """Prompt tokens it computed since it was made."""
    return int(engine.load().kv["computed_prompt_tokens"])


@pytest.mark.parametrize("length", [1, 40, 255, 256, 257, 512, 600])
def test_cold_and_warm_in_memory(machine, length):
    """Twice the same, then one token more, then one block less."""
    engine = machine.engine()
    for ids in (machine.ids[:length], machine.ids[:length], machine.ids[: length + 1]):
        assert machine.say(engine, request_of(ids)) == machine.judged(request_of(ids))
    shorter = machine.ids[: max(1, length - 256)]
    assert machine.say(engine, request_of(shorter)) == machine.judged(request_of(shorter))
    if length > 256:
        assert engine.load().kv["reused_tokens"] >= 2 * 256


def test_the_next_turn_in_memory_and_from_files(machine, files):
    first = request_of(machine.ids[:520])
    engine = machine.engine()
    engine.add(first, keep=True)
    kept = list(events_of(engine))[-1].kept
    files.write(engine, kept)
    second = request_of([*kept.token_ids, *machine.ids[7:30]])
    judged = machine.judged(second)
    before = computed_by(engine)
    assert machine.say(engine, second) == judged
    assert computed_by(engine) - before == len(second.token_ids) - kept.num_kv
    engine.release(kept)
    other = machine.engine()
    prefix = files.prefix(other, second, second.token_ids, [kept.num_kv])
    assert machine.say(other, second, prefix=prefix) == judged
    assert computed_by(other) == len(second.token_ids) - kept.num_kv
    assert other.load().kv["mapped_blocks"] == 2


@pytest.mark.parametrize("length", [30, 253])
def test_a_move_at_every_token_boundary(machine, files, length):
    """Resumed in the same engine while it is held, and in a second one from files."""
    request = request_of(machine.ids[:length])
    whole = machine.judged(request)
    for boundary in range(len(whole) - 1):
        engine = machine.engine(step_tokens=200)
        engine.add(request)
        begun = [output.event for output in islice(events_of(engine), boundary)]
        kept = engine.suspend("r")
        files.write(engine, kept)
        other = machine.engine()
        prefix = files.prefix(other, request, kept.token_ids, [kept.num_kv])
        begun = [uncached(event) for event in begun]
        assert begun + machine.say(other, request, begun, prefix) == whole
        assert computed_by(other) == max(0, length - kept.num_kv)
        before = computed_by(engine)
        assert begun + machine.say(engine, request, begun) == whole
        assert computed_by(engine) - before == max(0, length - kept.num_kv)
        engine.release(kept)
        engine.check()


def test_forks_in_company(machine):
    """Four go on from one end at once; the fifth, of another tenant, computes everything."""
    engine = machine.engine()
    engine.add(request_of(machine.ids[:300]), keep=True)
    kept = list(events_of(engine))[-1].kept
    forks = [
        request_of([*kept.token_ids, *machine.ids[index : index + 9]], f"f{index}", seed=index)
        for index in range(4)
    ]
    for fork in forks:
        engine.add(fork)
    events = {fork.id: [] for fork in forks}
    while engine.has_work():
        for output in engine.step():
            events[output.request_id].append(output.event)
        engine.check()
    for fork in forks:
        assert [uncached(event) for event in events[fork.id]] == machine.judged(fork)
        assert cached(events[fork.id]) == kept.num_kv
    engine.release(kept)


def test_a_small_memory_in_which_everything_is_evicted_again_and_again(machine):
    engine = machine.engine(num_blocks=4, num_state_slots=2)
    for turn in range(3):
        for begin in (0, 50, 100):
            request = request_of(machine.ids[begin : begin + 560 + 20 * turn], max_tokens=3)
            assert machine.say(engine, request) == machine.judged(request)
    assert engine.load().kv["dropped_blocks"] > 0


@pytest.mark.parametrize("num_state_slots", [1, 8])
def test_abandoned_steps_behind_a_prefix(machine, files, num_state_slots):
    first = machine.engine()
    first.add(request_of(machine.ids[:520]), keep=True)
    kept = list(events_of(first))[-1].kept
    files.write(first, kept)
    request = request_of([*kept.token_ids, *machine.ids[7:90]])
    engine = machine.engine(
        Abandons({2, 7, 12, 13}), step_tokens=50, num_state_slots=num_state_slots
    )
    prefix = files.prefix(engine, request, request.token_ids, [kept.num_kv])
    engine.add(request, prefix=prefix)
    events = []
    while engine.has_work():
        with suppress(StepAbandoned):
            events += [uncached(output.event) for output in engine.step()]
        engine.check()
    assert events == machine.judged(request)


def test_a_take_over_with_a_prefix(machine, files):
    """Its owner died after three tokens; only the prompt's beginning was in files."""
    first = machine.engine()
    prompt = machine.ids[:540]
    first.add(request_of(prompt[:530], max_tokens=2), keep=True)
    kept = list(events_of(first))[-1].kept
    files.write(first, kept)
    request = request_of(prompt)
    whole = machine.judged(request)
    engine = machine.engine()
    prefix = files.prefix(engine, request, prompt, [kept.num_kv, 512])
    assert machine.say(engine, request, whole[:3], prefix) == whole[3:]
    assert sum(isinstance(event, TokenEvent) for event in whole) == 6
