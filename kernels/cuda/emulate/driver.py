"""Builds the emulated CUDA driver: a folder with a libcuda.so.1 on which PyCUDA runs.

    LD_LIBRARY_PATH=FOLDER LOCKSTEP_CUDA_KERNELS=LIBRARY python ...      a process with that GPU

Whatever else a PyCUDA links to answers "not supported": which functions, depends on the headers it
was built with, so the rest is read off its own library.
"""

import importlib.util
import subprocess
from hashlib import blake2b
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from kernels.cuda.emulate.build import FOLDER, NoCompiler, cache_folder, library

SOURCE: Final = FOLDER / "emulate" / "driver.cpp"
FLAGS: Final = ("-std=c++20", "-O2", "-fPIC", "-shared", "-fvisibility=hidden")
NAME: Final = "libcuda.so.1"


def driver_folder(pycuda: Path | None = None, folder: Path | None = None) -> Path:
    """The folder that holds the driver.   pycuda: its _driver library, else the one that Python
    finds. Raises NoCompiler.
    """
    pycuda = pycuda or _pycuda_library()
    missing = b"" if pycuda is None else _rest(pycuda).encode()
    digest = blake2b(SOURCE.read_bytes() + missing + " ".join(FLAGS).encode(), digest_size=8)
    place = (folder or cache_folder()) / f"driver-{digest.hexdigest()}"
    if not (place / NAME).exists():
        place.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=".driver-", dir=place.parent) as aside:
            made = Path(aside) / "made"
            made.mkdir()
            rest = Path(aside) / "rest.c"
            rest.write_bytes(missing)
            _compile(made / NAME, rest)
            try:
                made.rename(place)
            except OSError:
                assert (place / NAME).exists(), place  # somebody else was faster
    return place


def environment(settings: str = "") -> dict[str, str]:
    """What a process needs to find that GPU.   settings: FAKE_CUDA's. Raises NoCompiler."""
    return {
        "LD_LIBRARY_PATH": str(driver_folder()),
        "LOCKSTEP_CUDA_KERNELS": str(library()),
        "FAKE_CUDA": settings,
    }


def _pycuda_library() -> Path | None:
    found = importlib.util.find_spec("pycuda")
    if found is None or found.submodule_search_locations is None:
        return None
    return next(Path(found.submodule_search_locations[0]).glob("_driver.*.so"), None)


def _rest(pycuda: Path) -> str:
    """C of the functions that PyCUDA links to and the driver lacks."""
    said = subprocess.run(
        ["nm", "-D", "--undefined-only", str(pycuda)], capture_output=True, text=True, check=True
    )
    wanted = {name for name in said.stdout.split() if name.startswith("cu") and name[2:3].isupper()}
    text = SOURCE.read_text()
    missing = sorted(name for name in wanted if f"API {name}(" not in text)
    lines = [f'asm(".globl {name}\\n.set {name}, unsupported");' for name in missing]
    return "\n".join(["int unsupported(void) { return 801; }", *lines, ""])


def _compile(path: Path, rest: Path) -> None:
    rest_object = rest.with_suffix(".o")
    steps = [
        ["gcc", "-O1", "-fPIC", "-c", str(rest), "-o", str(rest_object)],
        ["g++", *FLAGS, f"-Wl,-soname,{NAME}", str(SOURCE), str(rest_object), "-o", str(path)],
    ]
    for command in steps:
        try:
            done = subprocess.run(command, capture_output=True, text=True)
        except FileNotFoundError as error:
            raise NoCompiler(f"{command[0]} is not installed") from error
        if done.returncode:
            raise NoCompiler(f"{command[0]} refuses the emulated driver: {done.stderr[:400]}")
