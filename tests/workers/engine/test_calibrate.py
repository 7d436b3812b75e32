"""What steps cost is measured once, kept, and measured anew where anything differs."""

import numpy as np
import pytest

from kernels.ops import BLOCK_TOKENS
from tests.workers.engine.fake import (
    CONTEXT,
    VOCAB,
    FakeClock,
    FakeModel,
    RecurrentModel,
    make_engine,
    make_request,
    run,
)
from workers.engine import calibrate
from workers.engine.calibrate import GRID, calibrated, made_up, measure, path_of


class Careless(FakeModel):
    """Does not mind what is in the memory that it reads."""

    def _logits(self, step, kv, row):
        return np.zeros(VOCAB, np.float32)


class CarelessRecurrent(Careless, RecurrentModel):
    """With a state that nobody looks at."""

    def _advance(self, step, kv, state, layer, rows, slot):
        state.delta[slot, layer] += 1


class Machine:
    """An engine whose steps take fixed_ms + per_token_ms of a clock for each token."""

    def __init__(self, fixed_ms=20, per_token_ms=2, model=Careless, **limits):
        self.clock = FakeClock()
        self.model = model(self.clock, fixed_ms, per_token_ms)
        usual = {"max_batch": 16, "max_step_tokens": 512, "num_blocks": 64}
        self.engine = make_engine(self.clock, self.model, **(usual | limits))

    def measure(self, budget_ms=100_000):
        return measure(self.engine, budget_ms, now_ms=self.clock)


@pytest.mark.parametrize("model", [Careless, CarelessRecurrent])
def test_a_machine_with_time_enough_is_measured_whole_and_left_as_it_was(model):
    """But for what its context does not hold."""
    machine = Machine(model=model)
    fitting = [probe for probe in GRID if probe.context + probe.tokens <= CONTEXT]
    steps = machine.measure()
    assert [work for _, work in steps] == [probe.work() for probe in fitting]
    assert machine.engine.load().free_blocks == 64
    machine.engine.check()
    request = make_request()
    machine.engine.add(request)
    assert run(machine.engine)[request.id][-1].status == "finished"


def test_the_numbers_are_those_of_the_machine():
    machine = Machine(fixed_ms=20, per_token_ms=2)
    model = calibrate.learn(machine.measure())
    assert model.fixed_ms == pytest.approx(20, rel=0.1)
    assert model.step_ms(16, 1024) == pytest.approx(52, rel=0.1)
    assert model.step_ms(0, 0, 400, 200) == pytest.approx(820, rel=0.1)


def test_a_slow_machine_measures_two_steps_and_no_more():
    machine = Machine(fixed_ms=2000, per_token_ms=100)
    begin = machine.clock.now_ms
    assert len(machine.measure(1500)) == 2
    assert machine.clock.now_ms - begin == 2100 + 3600


def test_an_engine_with_little_memory_leaves_out_what_it_cannot_hold():
    machine = Machine(num_blocks=4, max_batch=4)
    works = [work for _, work in machine.measure()]
    assert [work.decodes for work in works if work.decodes] == [1, 4]
    assert machine.engine.load().free_blocks == 4


def test_a_made_up_sequence_is_to_compute_what_its_probe_says():
    for probe in GRID:
        sequences = made_up(Machine().engine, probe)
        assert len(sequences) == probe.sequences
        for sequence in sequences:
            assert len(sequence.token_ids) == probe.context + probe.tokens
            assert sequence.num_blocks_wanted * BLOCK_TOKENS > probe.context


@pytest.fixture
def once(tmp_path):
    """Calibrates an engine as a pool does; what differs is said."""

    def call(**other):
        machine = Machine()
        names = {"pool": "cpu", "weights_digest": "fa" * 16, "machine": "a machine"} | other
        cost = calibrated(machine.engine, tmp_path, **names)
        return cost, len(machine.model.steps)

    return call


def test_a_second_start_measures_nothing(once):
    first, num_steps = once()
    assert num_steps > 0
    assert once() == (first, 0)


@pytest.mark.parametrize("other", ["pool", "weights_digest", "machine"])
def test_another_pool_model_or_machine_is_measured(once, other):
    once()
    assert once(**{other: "another"})[1] > 0


@pytest.mark.parametrize("damage", ["", "{", '{"version": 7}', "null"])
def test_a_file_that_cannot_be_read_is_measured_anew(once, tmp_path, damage):
    once()
    path = path_of(tmp_path, "cpu", "fa" * 16, "a machine")
    path.write_text(damage)
    again, num_steps = once()
    assert num_steps > 0
    assert once() == (again, 0)


def test_a_disk_that_refuses_the_file_costs_only_time(once, tmp_path):
    (tmp_path / "calibration").write_text("in the way")
    cost, num_steps = once()
    assert cost.fixed_ms > 0 and num_steps > 0


def test_a_calibrated_engine_knows_its_chunks_from_the_first_step_on():
    machine = Machine(fixed_ms=20, per_token_ms=2)
    machine.engine.start_from(calibrate.learn(machine.measure()))
    machine.model.steps.clear()
    machine.engine.add(make_request(token_ids=[10] * 600))
    machine.engine.step()
    assert len(machine.model.steps[0].token_ids) == pytest.approx((50 - 20) / 2, abs=2)


def test_the_machine_is_named_by_all_that_decides_its_speed():
    one = calibrate.machine_of(4, "avx2")
    assert calibrate.cpu_name() in one
    assert len({one, calibrate.machine_of(8, "avx2"), calibrate.machine_of(4, "avx512")}) == 3
    assert "L40S" in calibrate.machine_of(0, "", "NVIDIA L40S")
