"""A PyCUDA for tests on a machine without a GPU: built once, against CUDA headers alone.

It lies in a folder of its own under build/cuda (site(): what to put in front of sys.path), not in
the environment: a GPU's users have their own, from `pip install lockstep[gpu]`. Headers come from a
CUDA toolkit, else from NVIDIA's wheels; an empty library stands in for the driver while it links.
Unoptimised, on all cores: some twenty seconds on two.
"""

import fcntl
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from kernels.cuda.build import nvcc
from kernels.cuda.emulate.build import cache_folder

PYCUDA: Final = "pycuda==2026.1"
BESIDE: Final = ("pytools", "platformdirs", "mako", "siphash24")  # what it imports
HEADERS: Final = ("nvidia-cuda-runtime==13.0.*", "nvidia-cuda-profiler-api==13.0.*")
WANTED: Final = ("cuda.h", "cudaProfiler.h")
STUB: Final = "int cuInit(unsigned flags) { return 100; }\n"

# setup.py of PyCUDA, its files compiled side by side.
PARALLEL: Final = """
import os, runpy, sys
from concurrent.futures import ThreadPoolExecutor
from setuptools._distutils.ccompiler import CCompiler

def compile(self, sources, output_dir=None, macros=None, include_dirs=None, debug=0,
            extra_preargs=None, extra_postargs=None, depends=None):
    macros, objects, extra, flags, build = self._setup_compile(
        output_dir, macros, include_dirs, sources, depends, extra_postargs)
    cc_args = self._get_cc_args(flags, debug, extra_preargs)
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        list(threads.map(
            lambda one: self._compile(one, *build[one], cc_args, extra, flags), build))
    return objects

CCompiler.compile = compile
sys.argv[0:1] = ["setup.py", "-q"]
runpy.run_path("setup.py", run_name="__main__")
"""


class NoPyCuda(Exception):
    """It cannot be built here; the text says why."""


def site() -> Path | None:
    """What goes in front of sys.path; None: this Python has a PyCUDA already. Raises NoPyCuda."""
    if find_spec("pycuda") is not None:
        return None
    python = f"{sys.version_info.major}{sys.version_info.minor}"
    place = cache_folder() / f"pycuda-{PYCUDA[8:]}-py{python}-numpy{version('numpy')}"
    place.parent.mkdir(parents=True, exist_ok=True)
    with open(f"{place}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # others wait for the one that builds
        if not place.exists():
            with TemporaryDirectory(prefix=".pycuda-", dir=place.parent) as aside:
                _build(Path(aside))
                (Path(aside) / "site").rename(place)
    return place


def wheel(aside: Path) -> Path:
    """A wheel of it, optimised, for this Python; made in the folder aside. Raises NoPyCuda."""
    root = _source(aside, "['-O2', '-g0', '-w']")
    _run(sys.executable, "-c", PARALLEL, "build_ext", cwd=root)
    _run(sys.executable, "setup.py", "-q", "bdist_wheel", "--dist-dir", str(aside), cwd=root)
    (made,) = aside.glob("pycuda-*.whl")
    return made


def _build(aside: Path) -> None:
    """aside/site, whole."""
    site = aside / "site"
    _pip("install", "--target", str(site), "--no-deps", *BESIDE)
    root = _source(aside, "['-O0', '-g0', '-w']")
    _run(sys.executable, "-c", PARALLEL, "build_ext", "--inplace", cwd=root)
    shutil.move(root / "pycuda", site / "pycuda")


def _source(aside: Path, flags: str) -> Path:
    """Its source, ready to be compiled with these flags."""
    source = aside / "source"
    _pip("download", "--no-deps", "--no-binary", ":all:", "--no-build-isolation", PYCUDA,
         "--dest", str(source))  # fmt: skip
    (archive,) = source.glob("pycuda-*.tar.gz")
    with tarfile.open(archive) as packed:
        packed.extractall(source, filter="data")
    root = source / archive.name.removesuffix(".tar.gz")
    _as_one(root / "bpl-subset" / "bpl_subset" / "libs" / "python" / "src")
    include, stub = _headers(aside), aside / "stub"
    stub.mkdir()
    (stub / "stub.c").write_text(STUB)
    _run("gcc", "-shared", "-fPIC", str(stub / "stub.c"), "-Wl,-soname,libcuda.so.1",
         "-o", str(stub / "libcuda.so"))  # fmt: skip
    (root / "siteconf.py").write_text(
        f"CUDA_INC_DIR = [{str(include)!r}]\nCUDADRV_LIB_DIR = [{str(stub)!r}]\n"
        "CUDADRV_LIBNAME = ['cuda']\nCUDA_ENABLE_CURAND = False\nCUDA_ENABLE_GL = False\n"
        f"CXXFLAGS = {flags}\nLDFLAGS = ['-Wl,--no-as-needed']\n"
    )
    return root


def _as_one(folder: Path) -> None:
    """Boost.Python's files become one: each would read the same headers for longer than its own."""
    parts = sorted(folder.rglob("*.cpp"))
    assert len(parts) > 20, folder
    for part in parts:
        part.rename(part.with_suffix(".part"))
    names = (part.with_suffix(".part").relative_to(folder) for part in parts)
    (folder / "whole.cpp").write_text("".join(f'#include "{name}"\n' for name in names))


def _headers(aside: Path) -> Path:
    """A folder with the headers that it includes. Raises NoPyCuda."""
    compiler = nvcc()
    places = [Path("/usr/local/cuda/include")]
    if compiler is not None:
        places.append(Path(compiler).resolve().parents[1] / "include")
    for place in places:
        if all((place / name).exists() for name in WANTED):
            return place
    wheels, include = aside / "wheels", aside / "include"
    _pip("download", "--no-deps", "--only-binary", ":all:", *HEADERS, "--dest", str(wheels))
    include.mkdir()
    for wheel in wheels.glob("*.whl"):
        with zipfile.ZipFile(wheel) as packed:
            for name in packed.namelist():
                if "/include/" in name and not name.endswith("/"):
                    target = include / name.partition("/include/")[2]
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_bytes(packed.read(name))
    missing = [name for name in WANTED if not (include / name).exists()]
    if missing:
        raise NoPyCuda(f"NVIDIA's wheels lack {', '.join(missing)}")
    return include


def _pip(*arguments: str) -> None:
    _run(sys.executable, "-m", "pip", "--disable-pip-version-check", "-q", *arguments)


def _run(*command: str, cwd: Path | None = None) -> None:
    environment = os.environ | {"PYTHONNOUSERSITE": "1"}
    try:
        done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True)
    except FileNotFoundError as error:
        raise NoPyCuda(f"{command[0]} is not installed") from error
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()[-3:]
        raise NoPyCuda(f"{Path(command[0]).name} {command[1]}: {' | '.join(said)}")


if __name__ == "__main__":
    print(site() or "this Python has a PyCUDA")
