"""The emulated GPU's memory is its own: only what is copied is there."""

import subprocess
import sys

import numpy as np
import pytest

from kernels.arrays import DeviceAbsent, DeviceError, DeviceFull
from kernels.cuda.emulate.build import NoCompiler, library
from kernels.cuda.emulate.device import EmulatedDevice, open_emulated
from kernels.cuda.host import CudaOps


@pytest.fixture
def device():
    return EmulatedDevice(library(), settings="memory_mib=1")


def test_what_is_written_is_read_and_pieces_of_it_are_copied(device):
    room = device.reserve((4, 3, 5), np.float32)
    values = np.arange(60, dtype=np.float32).reshape(4, 3, 5)
    device.write(room, values)
    device.copy(room[2, :, 1:3], room[0, :, 2:4])  # rows with a distance
    values[2, :, 1:3] = values[0, :, 2:4]
    assert (device.read(room) == values).all()
    assert (device.read(room[1:, 1]) == values[1:, 1]).all()


def test_an_array_of_this_process_is_read_as_it_is_and_never_written(device):
    """A kernel sees a copy: a result that is not fetched does not appear by itself."""
    mine = np.ones((1, 4), np.float32)
    assert device.read(mine) is mine and not device.reaches(mine)
    CudaOps(device).scale(mine, 3.0)
    assert (mine == 1).all()


def test_ops_work_on_what_is_there(device):
    ops, x = CudaOps(device), device.constant(np.full((2, 8), 3, np.float32))
    out = device.reserve((1, 8), np.float32)
    ops.take_rows(out, x, np.array([1], np.int32))
    ops.scale(out, 2.0)
    assert (device.read(out) == 6).all()
    best = np.zeros(1, np.int32)
    ops.logits_argmax(best, out)
    assert best.tolist() == [0]
    with pytest.raises(AssertionError, match="read-only"):
        ops.scale(x, 2.0)


def test_its_memory_ends(device):
    room = device.reserve((1 << 18,), np.uint8)
    assert device.free_bytes() == (1 << 20) - room.nbytes
    with pytest.raises(DeviceFull, match="1 MiB wanted, 0 are free"):
        device.reserve((1 << 20,), np.uint8)


def test_whoever_looks_into_its_arrays_ends():
    """So that a forgotten copy is found at once, and not as wrong numbers."""
    code = "from kernels.cuda.emulate.device import open_emulated as o; o().reserve((2,), 'f4')[0]"
    assert subprocess.run([sys.executable, "-c", code]).returncode == -11


@pytest.mark.parametrize("fault", ["full_if", "launch_error_if", "lost_if"])
def test_a_fault_begins_when_its_file_is_there(tmp_path, fault):
    device = EmulatedDevice(library(), settings=f"{fault}={tmp_path / 'now'}")
    ops, x = CudaOps(device), device.reserve((1, 8), np.float32)
    ops.scale(x, 2.0)
    (tmp_path / "now").touch()
    with pytest.raises(DeviceError, match="GPU"):
        ops.scale(x, 2.0)


def test_without_a_compiler_there_is_none(monkeypatch):
    def refuse():
        raise NoCompiler("g++ is not installed")

    monkeypatch.setattr("kernels.cuda.emulate.device.library", refuse)
    with pytest.raises(DeviceAbsent, match="not installed"):
        open_emulated()
