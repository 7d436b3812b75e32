"""All that a GPU machine without network needs beside the repository, in one folder.

    python -m ingest.command.bench.gpu.kit FOLDER [--python 3.12] [--wheels FOLDER]

Wheels of what pyproject.toml asks for (without what only the build of mypyc modules takes), of
PyCUDA and of pytest; and the compiled kernels, if nvcc is here. PyCUDA has no wheels of its own: it
is built here for this Python, optimised; for another Python it must lie in --wheels.
tests/bench/gpu.sh is what runs there.
"""

import argparse
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from kernels.cuda.build import NoNvcc, fatbin
from kernels.cuda.emulate.pycuda_site import BESIDE, NoPyCuda, wheel

ROOT: Final = Path(__file__).parents[4]
TESTED_WITH: Final = ("pytest", "hypothesis")  # of the extra dev
BUILT_WITH: Final = "setuptools>=80"
PLATFORMS: Final = ("2_28", "2_27", "2_17", "2_5", "2014", "1")  # manylinux


def main() -> int:
    """1 when something cannot be had; what is there already is not fetched again."""
    parser = argparse.ArgumentParser(description=__doc__)
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    parser.add_argument("folder", type=Path)
    parser.add_argument("--python", default=here)
    parser.add_argument("--wheels", type=Path)
    chosen = parser.parse_args()
    folder: Path = chosen.folder
    folder.mkdir(parents=True, exist_ok=True)
    try:
        _download(folder, chosen.python)
        if not list(folder.glob("pycuda-*.whl")):
            _add_pycuda(folder, chosen.python, chosen.python == here, chosen.wheels)
    except (NoPyCuda, subprocess.CalledProcessError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    try:
        shutil.copy(fatbin(), folder)
    except NoNvcc as error:
        print(f"without compiled kernels, the GPU machine has to have nvcc: {error}")
    size = sum(path.stat().st_size for path in folder.iterdir())
    print(f"{folder}: {size >> 20} MiB for Python {chosen.python}")
    return 0


def _requirements() -> list[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    dev = project["optional-dependencies"]["dev"]
    tested = [line for line in dev if line.startswith(TESTED_WITH)]
    return [*project["dependencies"], *tested, *BESIDE, BUILT_WITH]


def _download(folder: Path, python: str) -> None:
    """Wheels alone, for whatever Python."""
    platforms = [f"--platform=manylinux{'_' if '_' in p else ''}{p}_x86_64" for p in PLATFORMS]
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q", "download"]
    options = ["--only-binary=:all:", f"--python-version={python}", "--implementation=cp"]
    subprocess.run(
        [*command, *options, *platforms, f"--dest={folder}", *_requirements()], check=True
    )


def _add_pycuda(folder: Path, python: str, is_this: bool, wheels: Path | None) -> None:
    """Raises NoPyCuda."""
    tag = f"cp{python.replace('.', '')}"
    found = sorted(wheels.glob(f"pycuda-*-{tag}-*.whl")) if wheels else []
    if found:
        shutil.copy(found[-1], folder)
    elif is_this:
        with TemporaryDirectory() as aside:
            shutil.copy(wheel(Path(aside)), folder)
    else:
        raise NoPyCuda(f"PyCUDA for Python {python} cannot be built by this one: --wheels FOLDER")


if __name__ == "__main__":
    sys.exit(main())
