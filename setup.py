"""Only what pyproject.toml cannot say: the compiled parts.

    python setup.py build_ext --inplace           the extension and, by mypyc, the typed host code
    PURE=1 python setup.py build_ext --inplace    the extension alone; host code stays .py

Beside the extension lies build_hash.json: what was compiled from which bytes, so that a test can
tell a stale build. A wheel also holds the GPU's kernels, if nvcc is there.
"""

import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).parent
HASHES = "kernels/cpu/build_hash.json"
C_FILES = sorted(str(p.relative_to(ROOT)) for p in (ROOT / "kernels/cpu").glob("*.c"))
HEADERS = sorted(str(p.relative_to(ROOT)) for p in (ROOT / "kernels/cpu").glob("*.h"))
COMPILED = [  # hot typed code; each also runs uncompiled
    "kernels/cpu/host.py",
    "workers/engine/scheduler.py",
    "workers/engine/places.py",
    "workers/engine/patience.py",
    "workers/engine/shortage.py",
    "workers/engine/line.py",
    "workers/engine/pace.py",
    "workers/engine/chunks.py",
    "workers/engine/cost.py",
    "workers/engine/batch.py",
    "workers/engine/sequence.py",
    "workers/engine/sampler.py",
    "kv_tier/block_pool.py",
]
PURE = bool(os.environ.get("PURE"))
# No contraction that is not written, no fast-math: ARITHMETIC.md. Vector files name their target.
FLAGS = ["-O3", "-std=gnu11", "-pthread", "-fvisibility=hidden", "-Wall", "-Wextra"]
FLAGS += ["-ffp-contract=off", "-fno-math-errno"]


def source_hashes(paths: list[str]) -> dict[str, str]:
    """sha256 of each file, by path from the root."""
    return {path: hashlib.sha256((ROOT / path).read_bytes()).hexdigest() for path in paths}


class BuildAndRemember(build_ext):
    """build_ext that writes down what it compiled; PURE=1 takes compiled modules away."""

    def run(self) -> None:
        hashes = {
            "extension": source_hashes([*C_FILES, *HEADERS]),
            "compiled": {} if PURE else source_hashes(COMPILED),
        }
        if PURE and self.inplace:
            remove_compiled()
        super().run()
        folder = ROOT if self.inplace else Path(self.build_lib)
        (folder / HASHES).write_text(json.dumps(hashes, indent=1) + "\n")
        if not self.inplace:
            add_kernels(folder / "kernels/cuda")


def add_kernels(folder: Path) -> None:
    """The GPU's kernels go into the package, where nvcc is; elsewhere it is made without."""
    sys.path.insert(0, str(ROOT))
    from kernels.cuda.build import fatbin, nvcc

    if nvcc() is not None:
        fatbin(folder)


def remove_compiled() -> None:
    """Compiled host modules beside their .py: they would win the import."""
    for path in COMPILED:
        for library in (ROOT / path).parent.glob(Path(path).stem + ".*.so"):
            library.unlink()
    for library in ROOT.glob("*__mypyc.*.so"):
        library.unlink()


extensions: list[Any] = [
    Extension(
        "kernels.cpu._cpu",
        C_FILES,
        depends=HEADERS,
        include_dirs=[numpy.get_include()],
        extra_compile_args=FLAGS,
        extra_link_args=["-pthread"],
    )
]
if not PURE:
    from mypyc.build import mypycify

    extensions += mypycify(COMPILED, opt_level="3", group_name="lockstep")

setup(ext_modules=extensions, cmdclass={"build_ext": BuildAndRemember})
