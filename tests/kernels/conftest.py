"""The sides that an op's tests run on, and how far each may be from the float64 judge."""

import os

import pytest

from kernels.cpu.host import CpuOps, usable_isas
from kernels.cuda.emulate.host import emulated_ops
from kernels.reference import ReferenceOps
from tests.kernels.cuda.devices import gpu, pycuda_place
from tests.kernels.cuda.round_trip import round_trip_ops
from tests.kernels.scalar_ops import ScalarOps, compile_model

__all__ = ["gpu", "pycuda_place"]  # fixtures
SIDES = (
    *("avx2-1", "avx2-5", "avx512-1", "avx512-2", "amx-1", "amx-2", "scalar"),  # ISA-threads
    *("gpu-forward", "gpu-shuffled"),  # emulated, in this order of threads
    *(("gpu-real",) if os.environ.get("LOCKSTEP_TEST_GPU") else ()),  # make test-gpu
)
# Uncompiled only the host code of the CPU's side is another: kernels and other sides are the same.
if os.environ.get("PURE"):
    SIDES = ("avx2-5",)
TOLERANCES = {  # (relative, absolute) to the judge, float32
    "embed": (1e-7, 1e-7),
    "matmul": (2e-5, 2e-4),
    "matmul_f32": (2e-5, 5e-4),
    "rms_norm": (1e-6, 1e-6),
    "rope": (1e-6, 1e-6),
    "attention": (1e-5, 5e-6),
    "silu_mul": (1e-6, 1e-30),
    "gelu_mul": (2e-6, 1e-6),
    "sigmoid_mul": (1e-6, 1e-30),
    "l2_norm": (1e-6, 1e-7),
    "conv1d": (1e-5, 2e-6),
    "delta_gates": (1e-5, 1e-7),
    "gated_delta_rule": (1e-5, 5e-6),
    "exp": (1.2e-7, 0.0),
    "log": (1.2e-7, 1e-7),
}


@pytest.fixture(scope="session")
def scalar(tmp_path_factory) -> ScalarOps:
    """The law: ARITHMETIC.md in plain C."""
    return ScalarOps(compile_model(tmp_path_factory.mktemp("scalar")))


@pytest.fixture(params=SIDES)
def ops(request, scalar):
    """Each implementation that must be right and lawful."""
    name, _, threads = request.param.partition("-")
    if name == "scalar":
        return scalar
    if threads == "real":
        return request.getfixturevalue("gpu_ops")
    if name == "gpu":
        return emulated_ops(threads)
    if name not in usable_isas():
        pytest.skip(f"this processor lacks {name}")
    return CpuOps(int(threads), name)


@pytest.fixture(scope="session")
def gpu_ops(gpu):
    """The ops on a device, for arrays in RAM."""
    return round_trip_ops(gpu)


@pytest.fixture(scope="session")
def judge() -> ReferenceOps:
    return ReferenceOps()


@pytest.fixture(scope="session")
def tolerance():
    return TOLERANCES
