"""Fixtures of a GPU: an emulated driver under PyCUDA's own code, or with LOCKSTEP_TEST_GPU=real
the one of this machine."""

import ctypes
import os
import subprocess
import sys
from functools import cache

import pytest

from kernels.cuda.device import GpuDevice, open_device
from kernels.cuda.emulate.build import NoCompiler, library
from kernels.cuda.emulate.driver import NAME, driver_folder, environment
from kernels.cuda.emulate.pycuda_site import NoPyCuda, site

IS_REAL = os.environ.get("LOCKSTEP_TEST_GPU") == "real"


@pytest.fixture(scope="session")
def pycuda_place():
    """Where the PyCUDA of these tests lies, in front of sys.path; "" for the installed one."""
    try:
        return found()
    except NoPyCuda as error:
        pytest.skip(f"the GPU's host code cannot run: {error}")


@cache
def found() -> str:
    """As pycuda_place; each module that has the fixture asks, and the first one changes sys.path.

    Raises NoPyCuda.
    """
    place = site()
    if place is None:
        return ""
    sys.path.insert(0, str(place))
    return str(place)


@pytest.fixture(scope="session")
def gpu(pycuda_place):
    """The device, opened once."""
    try:
        device = opened()
    except NoCompiler as error:
        pytest.skip(str(error))
    yield device
    device.close()


@cache
def opened() -> GpuDevice:
    """For this process; PyCUDA can be imported. Raises NoCompiler."""
    if not IS_REAL:
        ctypes.CDLL(str(driver_folder() / NAME), ctypes.RTLD_GLOBAL)
        os.environ["LOCKSTEP_CUDA_KERNELS"] = str(library())
    return open_device()


@pytest.fixture(scope="session")
def told(pycuda_place):
    """A function that runs Python on an emulated GPU, settings as FAKE_CUDA's; its last line."""
    if IS_REAL:
        pytest.skip("faults are made by the emulated driver")

    def run(code: str, settings: str) -> str:
        paths = [pycuda_place, *sys.path]
        env = os.environ | environment(settings) | {"PYTHONPATH": os.pathsep.join(paths)}
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip().splitlines()[-1]

    return run
