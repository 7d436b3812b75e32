"""The extension on a processor it cannot run on, and what it says of its arguments."""

import subprocess
import sys
import sysconfig
from pathlib import Path

import numpy as np
import pytest

from kernels.cpu import _cpu

SOURCES = sorted(Path(_cpu.__file__).parent.glob("*.c"))


def test_a_processor_without_avx2_gets_one_sentence(tmp_path):
    """The same sources, compiled as if the processor had said no."""
    library = tmp_path / "_cpu.so"
    includes = [f"-I{sysconfig.get_paths()['include']}", f"-I{np.get_include()}"]
    flags = ["-O0", "-w", "-std=gnu11", "-shared", "-fPIC", "-D__builtin_cpu_supports(x)=0"]
    command = ["gcc", *flags, *includes, *map(str, SOURCES), "-o", str(library)]
    subprocess.run(command, check=True)
    run = subprocess.run(
        [sys.executable, "-c", "import _cpu"], cwd=tmp_path, capture_output=True, text=True
    )
    assert "ImportError: this processor lacks AVX2, FMA or F16C: run the CPU pool on" in run.stderr


@pytest.mark.parametrize("count", [0, 3, 5, 9])
def test_a_wrong_number_of_arguments_is_a_type_error(count):
    with pytest.raises(TypeError):
        _cpu.add(*([1, 1, 0, np.zeros(1, np.float32), np.zeros(1, np.float32)] * 2)[:count][::-1])


def test_a_refusal_names_the_op_and_the_array():
    with pytest.raises(AssertionError, match="add: x has 3 items, not 4"):
        _cpu.add(1, 4, 0, np.zeros(4, np.float32), np.zeros(3, np.float32))
    with pytest.raises(AssertionError, match="exp: out has another dtype"):
        _cpu.exp(4, np.zeros(4), np.zeros(4, np.float32))
