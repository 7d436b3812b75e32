"""What can be wrong with a GPU is one exception with one line, whenever it happens."""

import os
import subprocess
import sys

import pytest

OPEN = """
from kernels.arrays import DeviceError
from kernels.cuda.device import open_device
try:
    device = open_device()
    print("open", device.sm)
except DeviceError as error:
    print(type(error).__name__, error)
"""
# Some launches go well; then the file is made, and the next ones do not.
LAUNCH = """
import os, sys
import numpy as np
from kernels.arrays import DeviceError
from kernels.cuda.device import device_ops, open_device
device = open_device()
ops, x = device_ops(device), device.reserve((2, 32), np.float32)
device.write(x, np.ones((2, 32), np.float32))
ops.scale(x, 2.0)
assert device.read(x).max() == 2
open(os.environ["BREAK"], "w").close()
try:
    ops.scale(x, 2.0)
    device.read(x)
    print("nothing")
except DeviceError as error:
    print(type(error).__name__, error, flush=True)
os._exit(0)
"""


AT_START = {  # settings of the emulated driver: what is said
    "": "open 90",
    "sm=86": "open 86",
    "no_device": "DeviceAbsent the driver gives none: cuInit failed: no CUDA-capable device",
    "old_driver": "DeviceAbsent the driver gives none: cuInit failed: CUDA driver version is",
    "no_kernels": "DeviceAbsent GPU emulated on the CPU: driver 13.0 does not take the kernels",
    "sm=75": "DeviceAbsent GPU emulated on the CPU is sm_75; the kernels need sm_80 or later",
    "memory_mib=8": "DeviceFull GPU memory is full: 64 MiB are wanted, 8 are free",
}
AT_WORK = {  # a fault that begins when its file is there: what is said
    "full_if": "DeviceFull GPU memory is full: scale: ",
    "launch_error_if": "DeviceLost the GPU failed: waiting for the GPU: ",
    "lost_if": "DeviceLost the GPU failed: scale: ",
}


@pytest.mark.parametrize("settings", AT_START)
def test_what_is_found_at_start(told, settings):
    assert told(OPEN, settings).startswith(AT_START[settings])


@pytest.mark.parametrize("fault", AT_WORK)
def test_what_happens_at_work(told, tmp_path, monkeypatch, fault):
    broken = tmp_path / "broken"
    monkeypatch.setenv("BREAK", str(broken))
    assert told(LAUNCH, f"{fault}={broken}").startswith(AT_WORK[fault])


def test_a_machine_without_a_driver_says_so(pycuda_place):
    """No emulated one either; where a real one is, it is simply found."""
    env = os.environ | {"PYTHONPATH": os.pathsep.join([pycuda_place, *sys.path])}
    done = subprocess.run([sys.executable, "-c", OPEN], env=env, capture_output=True, text=True)
    line = done.stdout.strip()
    assert line.startswith(("DeviceAbsent no NVIDIA driver", "open", "DeviceAbsent no GPU")), line


def test_a_machine_without_pycuda_says_what_to_install():
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    code = "import sys\nsys.modules['pycuda'] = None\n" + OPEN
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert done.stdout.startswith("DeviceAbsent PyCUDA is not installed: pip install"), done.stderr
