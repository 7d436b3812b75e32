"""A device's arrays hold what was written, in the order of launches, whoever reads.

On the emulated driver nothing happens before somebody waits for it, so what is read too early, or
overwritten before it was copied, shows.
"""

import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels.arrays import DeviceFull
from kernels.cpu.host import CpuOps
from kernels.cuda.device import device_ops
from kernels.cuda.staging import PIECE_BYTES, runs_of
from tests.kernels.cases import random_rows, same_bits


def placed(gpu, values):
    """An array of the device with these values, which may be written."""
    array = gpu.reserve(values.shape, values.dtype)
    gpu.write(array, values)
    return array


def test_what_is_written_is_read(gpu):
    values = random_rows(3, 40)
    array = placed(gpu, values)
    same_bits(values, gpu.read(array))
    assert gpu.read(values) is values, "what lies in RAM is read there"


def test_the_source_of_a_write_may_change_at_once(gpu):
    values = random_rows(1, 100)
    before = values.copy()
    array = placed(gpu, values)
    values[...] = 7
    same_bits(before, gpu.read(array))


@pytest.mark.parametrize("size", [PIECE_BYTES - 1, PIECE_BYTES, 5 * PIECE_BYTES + 3])
def test_copies_of_many_pieces_are_whole(gpu, size):
    values = np.random.default_rng(size).integers(0, 256, size, dtype=np.uint8)
    assert np.array_equal(gpu.read(gpu.constant(values)), values)


def test_scattered_views_are_written_read_and_copied(gpu):
    """As the tail of a KV block is: some tokens of each head."""
    values = np.arange(2 * 3 * 8 * 4, dtype=np.float32).reshape(2, 3, 8, 4)
    array, other = placed(gpu, values), placed(gpu, np.zeros_like(values))
    same_bits(values[:, 1:, :5], gpu.read(array[:, 1:, :5]))
    gpu.write(array[:, 0, 2:4], values[:, 2, 5:7])
    gpu.copy(other[:, :, 6:], array[:, :, 2:4])
    values[:, 0, 2:4] = values[:, 2, 5:7]
    expected = np.zeros_like(values)
    expected[:, :, 6:] = values[:, :, 2:4]
    same_bits(values, gpu.read(array))
    same_bits(expected, gpu.read(other))


def test_a_read_waits_for_all_launches_before_it_and_a_launch_for_all_writes(gpu):
    ops, cpu = device_ops(gpu), CpuOps(1)
    x, expected = random_rows(4, 256), random_rows(4, 256)
    array, row = placed(gpu, x), placed(gpu, x[0])
    expected[...] = x
    for _ in range(5):
        ops.scale(array, 0.3)
        gpu.write(row, x[0])
        ops.add(array, row)
        cpu.scale(expected, 0.3)
        cpu.add(expected, x[0])
    same_bits(expected, gpu.read(array))


def test_another_thread_reads_while_the_first_one_launches(gpu):
    ops, arrays = device_ops(gpu), [placed(gpu, random_rows(2, 512)) for _ in range(8)]
    expected = [gpu.read(array) for array in arrays]
    found: list = []
    thread = threading.Thread(target=lambda: found.extend(map(gpu.read, arrays)))
    thread.start()
    busy = placed(gpu, random_rows(2, 512))
    while thread.is_alive():
        ops.scale(busy, 0.5)
        gpu.read(busy)
    thread.join()
    for one, other in zip(expected, found, strict=True):
        same_bits(one, other)


def test_logits_are_judged_in_vram_and_only_the_verdict_crosses(gpu):
    ops, cpu, logits = device_ops(gpu), CpuOps(1), random_rows(3, 5000)
    array = placed(gpu, logits)
    for op, value in (("logits_argmax", np.int32), ("logits_sum", np.uint64)):
        here, there = np.empty(3, value), np.empty(3, value)
        getattr(cpu, op)(here, logits)
        getattr(ops, op)(there, array)
        assert here.tolist() == there.tolist()


def test_scores_that_lie_in_ram_have_their_exp_there(gpu):
    scores = random_rows(1, 100)
    here, there = np.empty_like(scores), np.empty_like(scores)
    CpuOps(1).exp(here, scores)
    device_ops(gpu).exp(there, scores)
    same_bits(here, there)


def test_an_array_that_is_not_in_vram_is_refused(gpu):
    x = random_rows(1, 32)
    with pytest.raises(AssertionError, match="not in VRAM"):
        device_ops(gpu).scale(x, 2.0)


def test_more_than_the_memory_is_refused_and_nothing_is_lost(gpu):
    values = random_rows(2, 32)
    array, free = placed(gpu, values), gpu.free_bytes()
    with pytest.raises(DeviceFull, match="are wanted"):
        gpu.reserve((free + 1,), np.uint8)
    with pytest.raises(DeviceFull, match="scratch"):
        gpu.scratch(1 << 40)
    assert gpu.free_bytes() == free
    same_bits(values, gpu.read(array))


@given(
    st.lists(
        st.tuples(st.integers(1, 4), st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=4
    )
)
def test_runs_are_the_bytes_of_a_view_in_order(parts):
    """parts: of each axis, its size and what is cut off before and behind."""
    whole = np.arange(np.prod([sum(part) for part in parts]), dtype=np.int32)
    whole = whole.reshape([sum(part) for part in parts])
    view = whole[tuple(slice(before, before + size) for size, before, _ in parts)]
    run, (distances,) = runs_of(view)
    begin = view.ctypes.data - whole.ctypes.data
    flat = whole.reshape(-1).view(np.uint8)
    found = [flat[begin + d : begin + d + run] for d in distances]
    assert np.array_equal(
        np.concatenate(found), np.ascontiguousarray(view).reshape(-1).view(np.uint8)
    )
    assert len(distances) * run == view.nbytes


def test_a_closed_device_may_be_closed_again(told):
    code = "from kernels.cuda.device import open_device\nd = open_device()\n"
    assert told(code + "d.close()\nd.close()\nprint('closed')", "") == "closed"
