"""Looks at the machine before anything is built: each thing that is missing is one sentence.

Run by the system's own Python, as `python3 -I ingest/command/preflight.py`, so it needs nothing but
the standard library and must be readable by a Python that is too old: 3.6 knows neither
`from __future__ import annotations` nor tuple[int, ...], so such types stand in quotes.
"""

import errno
import os
import platform
import shutil
import socket
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

PYTHON_MIN = (3, 11)
CPU_FLAGS = ("avx2", "fma", "f16c")
BUILD_MIB = 2500  # environment, build and the default model
RUN_MIB = 512  # what a node needs to start in: its store must be able to write


def python_problems(version: "tuple[int, ...]") -> "Iterator[str]":
    """The interpreter and what it must have beside it."""
    name = "python{}.{}".format(*version[:2])
    if version[:2] < PYTHON_MIN:
        wanted = "{}.{}".format(*PYTHON_MIN)
        yield (
            f"Python {wanted} or later is needed and this is {name[6:]}: "
            "install one and say `make start PYTHON=python3.x`."
        )
        return
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        yield f"Python's headers are missing: install {name}-dev (Fedora: python3-devel)."
    try:
        import ensurepip  # noqa: F401  (Debian ships venv without it)
        import venv  # noqa: F401
    except ImportError:
        yield f"Python's venv module is missing: install {name}-venv (Debian)."


def compiler_problems(compiler: str) -> "Iterator[str]":
    """A C compiler that finds the C library's headers."""
    if shutil.which(compiler) is None:
        yield f"There is no C compiler {compiler}: install gcc (Debian: build-essential)."
        return
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "probe.c")
        source.write_text(
            "#include <immintrin.h>\n#include <stdio.h>\nint main(void) { return 0; }\n"
        )
        command = [compiler, str(source), "-o", str(Path(folder, "probe"))]
        if subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode:
            yield f"{compiler} finds no C library: install libc6-dev (Fedora: glibc-devel)."


def cpu_problems(machine: str, cpuinfo: str) -> "Iterator[str]":
    """The instructions that the kernels are written in."""
    if machine not in ("x86_64", "AMD64"):
        yield f"The kernels need x86-64 with AVX2 and this is {machine}: use another machine."
        return
    flags = next((line.split() for line in cpuinfo.splitlines() if line.startswith("flags")), [])
    missing = [flag.upper() for flag in CPU_FLAGS if flag not in flags]
    if missing:
        yield (
            f"This processor lacks {', '.join(missing)}: use one from 2015 or later, "
            "or let the virtual machine show what its host has."
        )


def disk_problems(folder: Path, need_mib: int) -> "Iterator[str]":
    """Room for what comes; folder need not exist yet."""
    while not folder.exists():
        folder = folder.parent
    free_mib = shutil.disk_usage(folder).free >> 20
    if free_mib < need_mib:
        where = folder.resolve()
        yield f"{where} has {free_mib} MiB free and {need_mib} are needed: make room there."


def port_problems(host: str, port: int, setting: str) -> "Iterator[str]":
    """A port that we will listen on."""
    no_address = f"{host} is no address of this machine: set LOCKSTEP_HOST."
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError:
        yield no_address
        return
    with socket.socket(family, kind, proto) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
        except PermissionError:
            yield f"Port {port} may not be used by this user: set {setting} to one above 1023."
        except OSError as error:
            in_use = f"Port {port} is in use: stop what listens there, or set {setting} to another."
            yield no_address if error.errno == errno.EADDRNOTAVAIL else in_use


def problems() -> "Iterator[str]":
    """Everything that would stop a build here."""
    cpuinfo = Path("/proc/cpuinfo")
    yield from python_problems(tuple(sys.version_info[:2]))
    yield from compiler_problems(os.environ.get("CC", "gcc").split()[0])
    yield from cpu_problems(platform.machine(), cpuinfo.read_text() if cpuinfo.exists() else "")
    yield from disk_problems(Path.cwd(), RUN_MIB if Path(".venv").exists() else BUILD_MIB)


def main() -> int:
    found = list(problems())
    for sentence in found:
        print(sentence, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
