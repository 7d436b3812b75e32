"""Compiles the CUDA kernels with g++, once for each state of their source.

The library's name is made of the sources and the flags: what is there need not be made again.
"""

import subprocess
from hashlib import blake2b
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

FOLDER: Final = Path(__file__).parents[1]
FLAGS: Final = (
    "-x", "c++", "-std=c++20", "-O3", "-mavx2", "-mfma", "-mf16c",
    "-ffp-contract=off", "-fno-math-errno", "-fPIC", "-shared",
)  # fmt: skip


class NoCompiler(Exception):
    """g++ is not there, or refuses the source; the text says which."""


def sources() -> list[Path]:
    """All files that the library is made of."""
    return sorted(p for p in FOLDER.rglob("*") if p.suffix in (".cu", ".cuh", ".h"))


def library(source: Path = FOLDER / "kernels.cu", folder: Path | None = None) -> Path:
    """The compiled library of a .cu file. Raises NoCompiler."""
    folder = folder or cache_folder()
    path = folder / f"emulated-{digest_of(FLAGS, source)}.so"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=".emulated-", dir=folder) as aside:
            made = Path(aside) / path.name
            _compile(source, made)
            made.replace(path)  # whole or not at all, whoever else builds it now
    return path


def cache_folder() -> Path:
    """Where compiled kernels are kept: build/cuda of a checkout, else in the user's cache."""
    root = FOLDER.parents[1]
    is_checkout = (root / "pyproject.toml").exists()
    return root / "build" / "cuda" if is_checkout else Path.home() / ".cache" / "lockstep"


def _compile(source: Path, path: Path) -> None:
    header = FOLDER / "emulate" / "device.h"
    command = ["g++", *FLAGS, "-I", str(FOLDER), "-include", str(header), str(source)]
    try:
        done = subprocess.run([*command, "-o", str(path)], capture_output=True, text=True)
    except FileNotFoundError as error:
        raise NoCompiler("g++ is not installed") from error
    if done.returncode:
        raise NoCompiler(f"g++ refuses {source.name}: {done.stderr[:400]}")


def digest_of(flags: tuple[str, ...], *others: Path) -> str:
    """16 hexadecimal digits of the flags, the kernels' sources and other files."""
    digest = blake2b(" ".join(flags).encode(), digest_size=8)
    for path in (*others, *sources()):
        digest.update(path.read_bytes())
    return digest.hexdigest()
