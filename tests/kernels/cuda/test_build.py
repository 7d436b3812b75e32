"""nvcc takes the same source: every kernel compiles for a real GPU, and no hot one spills."""

import ctypes

import pytest

from kernels.cuda.build import HOT, NoNvcc, fatbin, nvcc, read_report, report
from kernels.cuda.emulate.build import library

SAID = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'rms_norm' for 'sm_90'
ptxas info    : Function properties for rms_norm
    16 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 39 registers, used 1 barriers, 32784 bytes smem
ptxas info    : Compile time = 7.000 ms
ptxas info    : Compiling entry function 'add' for 'sm_90'
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 20 registers, used 0 barriers
"""


def test_registers_shared_memory_and_spills_are_read():
    norm, add = read_report("90", SAID)
    assert (norm.kernel, norm.registers, norm.shared_bytes, norm.spill_bytes) == (
        "rms_norm", 39, 32784, 16,
    )  # fmt: skip
    assert (add.kernel, add.registers, add.shared_bytes, add.spill_bytes) == ("add", 20, 0, 0)


@pytest.fixture(scope="module")
def of_h200():
    """What nvcc says of all kernels for sm_90."""
    if nvcc() is None:
        pytest.skip("no nvcc here: the kernels were compiled by g++ alone")
    return report("90")


def test_no_hot_kernel_spills(of_h200):
    hot = [kernel for kernel in of_h200 if kernel.kernel.startswith(HOT)]
    assert len(hot) > 20
    assert [kernel for kernel in hot if kernel.spill_bytes] == []


def test_every_kernel_that_nvcc_sees_is_emulated_too(of_h200):
    emulated = ctypes.CDLL(str(library()))
    for kernel in of_h200:
        assert emulated[f"{kernel.kernel}__emulated"]


def test_a_machine_without_nvcc_is_one_error(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("kernels.cuda.build.NVCC_PLACES", ())
    with pytest.raises(NoNvcc, match="not installed"):
        fatbin(tmp_path)
    assert not list(tmp_path.iterdir())
