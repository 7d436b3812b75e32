"""Steps on a device: every golden model gives the CPU's bits, launch by launch and as graphs."""

import numpy as np
import pytest

from kernels.arrays import DeviceAbsent
from kernels.cpu.host import CpuOps
from kernels.cuda import graphs
from kernels.cuda.device import device_ops
from kernels.cuda.geometry import ALL_KEYS, AttentionShape, most_stripes
from kernels.cuda.graphs import StepRunner, StepSizes, bucket_of, is_decode, step_bytes
from tests.kernels.cases import same_bits
from tests.workers.conftest import GOLDEN, TINY, tiny_home
from tests.workers.model.drive import run, state_arena
from workers.model import catalog
from workers.model.build import load_model
from workers.model.on_device import OnDevice, refuse_heads

__all__ = ["tiny_home"]  # a fixture
SIZES = {"max_step_tokens": 80, "max_logit_rows": 80}
# prompts, cut and side by side; then decode steps of two sequences and of one; then a prompt again
STEPS = [
    [(0, 66), (1, 2)],
    [(0, 5), (1, 1)],
    *[[(1, 1), (0, 1)]] * 4,
    *[[(0, 1)]] * 3,
    [(1, 9), (0, 1)],
    *[[(0, 1), (1, 1)]] * 2,
]


def sequences_of(name):
    data = np.load(GOLDEN / f"{name}.npz")
    prompt = data["long_ids" if "long_ids" in data else "ids"].tolist()
    return [(prompt * 81)[:81], list(range(40, 58))]


@pytest.mark.parametrize("name", TINY)
def test_the_device_gives_the_bits_of_the_cpu(gpu, tiny_home, name):
    folder, sequences = catalog.folder_of(tiny_home, name), sequences_of(name)
    on_cpu = load_model(folder, CpuOps(2), **SIZES)
    state = state_arena(on_cpu.config, 2)
    expected = run(on_cpu, sequences, STEPS, state)
    plain = load_model(folder, device_ops(gpu), **SIZES, arrays=gpu)
    model = OnDevice(plain, gpu, max_step_tokens=80, max_batch=2)
    state_there = state_arena(model.config, 2, gpu)
    found = run(model, sequences, STEPS, state_there, gpu)
    for one, other in zip(expected, found, strict=True):
        same_bits(one, other)
    if state is not None:
        same_bits(state.conv, gpu.read(state_there.conv))
        same_bits(state.delta, gpu.read(state_there.delta))
    assert model.runner.num_graphs == 2, "one for two sequences, one for one"


@pytest.fixture
def runner(gpu):
    return StepRunner(gpu, max_tokens=16, max_sequences=4, context_length=4096)


def decode_of(count, position):
    """A step of one token of each of so many sequences, all at one position."""
    step, _ = StepSizes(count, count, 16, count, 0).cut(np.zeros(1 << 16, np.uint8))
    step.positions[...] = position
    step.seq_index[...] = step.logit_rows[...] = np.arange(count)
    return step


def forward_of(gpu, calls):
    """A model that copies positions: what it is called with is written down."""
    ops, out = device_ops(gpu), gpu.reserve((4, 1), np.float32)
    table = gpu.constant(np.arange(4096, dtype=np.float32).reshape(-1, 1))

    def forward(step, after_layer):
        calls.append(int(step.positions.max()))
        after_layer()
        ops.take_rows(out[: step.positions.size], table, step.positions)
        return out[: step.positions.size]

    return forward


def test_a_bucket_is_made_launch_by_launch_then_drawn_then_launched(gpu, runner):
    calls: list = []
    forward = forward_of(gpu, calls)
    for position in (3, 900, 17, 1023):
        logits = runner.run(decode_of(2, position), forward, lambda: None)
        assert gpu.read(logits).tolist() == [[position], [position]]
    assert calls == [3, 1023], "the graph is drawn at the bucket's end"
    for position in (1024, 2047):
        logits = runner.run(decode_of(2, position), forward, lambda: None)
        assert gpu.read(logits).tolist() == [[position], [position]]
    assert runner.num_graphs == 2


def test_a_drawing_that_fails_leaves_the_device_as_it_was(gpu, runner):
    calls: list = []
    forward, is_broken = forward_of(gpu, calls), [True]

    def breaking(step, after_layer):
        logits = forward(step, after_layer)
        if len(calls) == 2 and is_broken[0]:
            raise ValueError("broken")
        return logits

    runner.run(decode_of(1, 5), breaking, lambda: None)
    with pytest.raises(ValueError, match="broken"):
        runner.run(decode_of(1, 6), breaking, lambda: None)
    is_broken[0] = False
    logits = runner.run(decode_of(1, 7), breaking, lambda: None)
    assert gpu.read(logits).tolist() == [[7]]


def test_the_graph_used_longest_ago_makes_room(gpu, runner, monkeypatch):
    monkeypatch.setattr(graphs, "MAX_GRAPHS", 2)
    calls: list = []
    forward = forward_of(gpu, calls)
    for count in (1, 2, 3, 1):
        for position in (9, 10, 11):
            logits = runner.run(decode_of(count, position), forward, lambda: None)
            assert gpu.read(logits).tolist() == [[position]] * count
    assert runner.num_graphs == 2
    assert len(calls) == 2 + 2 + 2 + 1, "that of one sequence had gone, and is drawn again"


def test_what_is_no_decode_step_is_never_drawn():
    assert is_decode(decode_of(3, 5))
    step, _ = StepSizes(3, 2, 16, 3, 0).cut(np.zeros(1 << 12, np.uint8))
    assert not is_decode(step), "two tokens of one sequence"
    step, _ = StepSizes(3, 3, 16, 2, 0).cut(np.zeros(1 << 12, np.uint8))
    assert not is_decode(step), "one token's logits are not wanted"


def test_buckets_are_powers_of_two_and_hold_their_steps():
    widths = {p: bucket_of(decode_of(1, p))[1] for p in (0, 1023, 1024, 2048, 4095)}
    assert widths == {0: 4, 1023: 4, 1024: 8, 2048: 16, 4095: 16}
    most = step_bytes(16, 4, 16)
    for tokens, sequences in ((16, 4), (4, 4), (1, 1)):
        StepSizes(tokens, sequences, 16, tokens, sequences).cut(np.zeros(most, np.uint8))


@pytest.mark.parametrize("window", [1, 2, 63, 64, 65, 70, 128, ALL_KEYS])
def test_stripes_of_a_window_are_enough_wherever_it_lies(window):
    shape = AttentionShape(1, 1, 64, window)
    for position in range(400):
        seen = position // 64 - max(position - window + 1, 0) // 64 + 1
        assert seen <= most_stripes(position + 1, shape) <= most_stripes(400, shape)


def test_heads_too_wide_for_a_blocks_shared_memory_are_refused(gpu):
    class SmallGpu:
        name, shared_bytes = "a GPU of sm_86", 99 << 10

    refuse_heads(AttentionShape(8, 8, 256, ALL_KEYS), SmallGpu)
    with pytest.raises(DeviceAbsent, match="heads of 512 numbers"):
        refuse_heads(AttentionShape(8, 8, 512, ALL_KEYS), SmallGpu)
