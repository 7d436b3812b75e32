"""Compiles the CUDA kernels with nvcc: one file for all GPUs, made once for each state of source.

    python -m kernels.cuda.build                  the fatbin, at build time or at first use
    python -m kernels.cuda.build --if-possible    the same; quietly nothing where nvcc is not
    python -m kernels.cuda.build --report         registers and spills of every kernel and GPU

There is no other way than nvcc: PyCUDA has to be built with a CUDA toolkit, so whoever has a
PyCUDA has it. The fatbin holds machine code for sm_80, 86, 89, 90 and 100, and PTX for those that
come later. Its name is made of the sources and the flags, so that what is there need not be made
again.
"""

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from kernels.cuda.emulate.build import FOLDER, cache_folder, digest_of

FLAGS: Final = ("-std=c++17", "-O3", "--fmad=false", "-Wno-deprecated-gpu-targets")
TARGETS: Final = ("80", "86", "89", "90", "100")
NVCC_PLACES: Final = ("/usr/local/cuda/bin/nvcc", "/usr/local/bin/nvcc")
SOURCE: Final = FOLDER / "kernels.cu"
HOT: Final = ("matmul_", "attention_", "gated_delta_rule", "rms_norm", "quantize_rows")


class NoNvcc(Exception):
    """nvcc is not there, or refuses the source; the text says which."""


@dataclass(frozen=True, slots=True)
class KernelReport:
    """What ptxas says of one kernel and GPU.   spill_bytes: stored and loaded"""

    target: str
    kernel: str
    registers: int
    shared_bytes: int
    spill_bytes: int


def fatbin(folder: Path | None = None) -> Path:
    """The compiled kernels. Raises NoNvcc."""
    name = f"kernels-{digest_of(FLAGS + TARGETS)}.fatbin"
    if folder is None and (FOLDER / name).exists():
        return FOLDER / name  # came with the package
    path = (folder or cache_folder()) / name
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=".kernels-", dir=path.parent) as aside:
            made = Path(aside) / path.name
            _nvcc("-fatbin", "--threads=0", *_for(*TARGETS, ptx="80"), "-o", str(made))
            made.replace(path)  # whole or not at all, whoever else builds it now
    return path


def image() -> bytes:
    """What a driver loads: the fatbin, or the file that LOCKSTEP_CUDA_KERNELS names.

    Raises NoNvcc when nothing is compiled and nothing can be.
    """
    named = os.environ.get("LOCKSTEP_CUDA_KERNELS")
    try:
        return (Path(named) if named else fatbin()).read_bytes()
    except OSError as error:
        raise NoNvcc(f"{error.filename} cannot be read: {error.strerror}") from error


def nvcc() -> str | None:
    """Where the compiler is, if anywhere."""
    found = shutil.which("nvcc")
    return found or next((place for place in NVCC_PLACES if Path(place).exists()), None)


def report(target: str) -> list[KernelReport]:
    """Of every kernel for one of TARGETS. Raises NoNvcc."""
    with TemporaryDirectory() as aside:
        made = Path(aside) / "kernels.cubin"
        said = _nvcc("-cubin", f"-arch=sm_{target}", "-Xptxas", "-v", "-o", str(made))
    return read_report(target, said)


def read_report(target: str, said: str) -> list[KernelReport]:
    """What ptxas -v printed."""
    found = []
    for part in said.split("Compiling entry function ")[1:]:
        name = re.match(r"'(\w+)'", part)
        registers, spills = re.search(r"Used (\d+) registers", part), _numbers(part, "spill")
        assert name and registers, part[:200]
        shared = sum(_numbers(part, "smem"))
        found.append(KernelReport(target, name[1], int(registers[1]), shared, sum(spills)))
    return found


def _numbers(text: str, what: str) -> list[int]:
    return [int(number) for number in re.findall(rf"(\d+) bytes {what}", text)]


def _for(*targets: str, ptx: str) -> list[str]:
    each = [f"-gencode=arch=compute_{target},code=sm_{target}" for target in targets]
    return [*each, f"-gencode=arch=compute_{ptx},code=compute_{ptx}"]


def _nvcc(*arguments: str) -> str:
    """What it printed."""
    compiler = nvcc()
    if compiler is None:
        raise NoNvcc("nvcc is not installed")
    command = [compiler, *FLAGS, *arguments, str(SOURCE)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise NoNvcc(f"nvcc refuses the kernels: {done.stderr[:400]}")
    return done.stdout + done.stderr


def main(arguments: list[str]) -> int:
    """Build, or report; 1 when there is no compiler or a hot kernel spills."""
    try:
        if arguments == ["--if-possible"]:
            if nvcc() is not None:
                fatbin()
            return 0
        if arguments != ["--report"]:
            print(fatbin())
            return 0
        found = [kernel for target in TARGETS for kernel in report(target)]
    except NoNvcc as error:
        print(error, file=sys.stderr)
        return int(arguments != ["--if-possible"])
    by_name: dict[str, list[KernelReport]] = {}
    for kernel in found:
        by_name.setdefault(kernel.kernel, []).append(kernel)
    print(f"{'registers on sm_':28}" + "".join(f"{target:>6}" for target in TARGETS) + "  spills")
    for name, each in sorted(by_name.items()):
        spilled = sum(kernel.spill_bytes for kernel in each)
        print(f"{name:28}" + "".join(f"{k.registers:6}" for k in each) + f"{spilled:8}")
    return int(any(k.spill_bytes for k in found if k.kernel.startswith(HOT)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
