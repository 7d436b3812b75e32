"""The Containerfile builds what it says, as far as that is seen without an engine.

Slow: its build commands make the package, and its command runs a node of it, as another user, with
nothing but the image's own files.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from urllib.request import urlopen

import pytest
from dockerfile_parse import DockerfileParser

from workers.settings import Settings

ROOT = Path(__file__).parents[2]
CONTAINERFILE = ROOT / "deploy" / "Containerfile"
TEXT = CONTAINERFILE.read_text()
USER = 10001
BUILD_S, READY_S, STOP_S = 3600, 300, 10


def instructions(stage: str) -> list[tuple[str, str]]:
    """(instruction, value) of one stage, continuations joined, without comments."""
    parser = DockerfileParser(fileobj=CONTAINERFILE.open("rb"))
    found, current = [], ""
    for one in parser.structure:
        if one["instruction"] == "FROM":
            current = one["value"].split()[-1]
        elif one["instruction"] != "COMMENT" and current == stage:
            found.append((one["instruction"], one["value"]))
    return found


def values(stage: str, instruction: str) -> list[str]:
    return [value for name, value in instructions(stage) if name == instruction]


def copied(stage: str) -> list[str]:
    """Paths of the repository that a stage takes."""
    copies = [value.split() for value in values(stage, "COPY") if "--from" not in value]
    return [path for words in copies for path in words[:-1]]


def environment() -> dict[str, str]:
    return dict(word.split("=", 1) for line in values("node", "ENV") for word in line.split())


def test_a_linter_finds_nothing():
    hadolint = Path(sys.executable).with_name("hadolint")
    done = subprocess.run([hadolint, CONTAINERFILE], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_every_path_that_is_copied_exists():
    paths = copied("build") + copied("node")
    assert len(paths) > 5
    for path in paths:
        assert (ROOT / path).exists(), path


def test_every_folder_of_code_is_copied():
    """Of what setup.py compiles and pyproject.toml names."""
    from tests.test_packages import FOLDERS

    assert set(FOLDERS) <= set(copied("build"))


def test_what_is_built_here_stays_out():
    """A library compiled for this machine would win over the one that is compiled there."""
    ignored = (ROOT / "deploy/Containerfile.dockerignore").read_text().split()
    assert {"**/*.so", "**/*.fatbin", "**/__pycache__", "build"} <= set(ignored)


def test_every_setting_that_it_names_exists():
    known = {f"LOCKSTEP_{name.upper()}" for name in Settings.model_fields}
    assert set(re.findall(r"LOCKSTEP_[A-Z_]+", TEXT)) <= known


def test_it_runs_as_nobody_in_particular_and_says_how_it_is():
    assert values("node", "USER") == [f"{USER}:{USER}"]
    assert json.loads(values("node", "CMD")[0])[:2] == ["honcho", "start"]
    assert "/readyz" in values("node", "HEALTHCHECK")[0]
    assert environment()["LOCKSTEP_HOME"] in values("node", "VOLUME")[0]


@pytest.fixture(scope="module")
def folder():
    """One that other users may enter; pytest's own are for us alone."""
    path = Path(tempfile.mkdtemp(prefix="lockstep-image-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="module")
def image(folder):
    """The files of the image, with Debian's Python: opt is /opt/lockstep, srv is /srv/lockstep."""
    source = folder / "src"
    source.mkdir()
    left_out = shutil.ignore_patterns("*.so", "__pycache__", "*.fatbin", "build_hash.json")
    for path in copied("build"):
        if (ROOT / path).is_dir():
            shutil.copytree(ROOT / path, source / path, ignore=left_out)
        else:
            shutil.copy(ROOT / path, source)
    [command] = [value for value in values("build", "RUN") if "pip install" in value]
    command = command.replace("/opt/lockstep", str(folder / "opt"))
    told = dict(value.split("=", 1) for value in values("build", "ARG"))
    made = subprocess.run(
        ["bash", "-euc", f"umask 022; {command}"], cwd=source, capture_output=True, text=True,
        env=os.environ | told | {"PATH": f"/usr/bin:/bin:{os.environ['PATH']}"},
        timeout=BUILD_S, check=False,
    )  # fmt: skip
    assert made.returncode == 0, made.stderr[-2000:]
    shutil.rmtree(source)
    (folder / "srv").mkdir()
    for path in copied("node"):
        shutil.copy(ROOT / path, folder / "srv")
    return folder


@pytest.mark.slow
def test_its_build_commands_make_compiled_code(image):
    [package] = image.glob("opt/lib/python3*/site-packages/workers")
    assert list(package.glob("engine/scheduler.*.so")), "mypyc"
    assert list(package.parent.glob("kernels/cpu/_cpu.*.so")), "the C extension"


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")
def test_a_node_of_it_gets_ready_and_stops_as_another_user(image, model_home, free_port):
    home = image / "home"
    shutil.copytree(model_home / "models", home / "models")
    for path in (home, *home.rglob("*")):
        os.chown(path, USER, USER)
    port, log = free_port(), image / "log"
    told = environment() | {
        "PATH": f"{image / 'opt/bin'}:/usr/bin:/bin", "LOCKSTEP_HOME": str(home),
        "LOCKSTEP_HOST": "127.0.0.1", "LOCKSTEP_PORT": str(port),
        "LOCKSTEP_STORE_PORT": str(free_port()), "LOCKSTEP_THREADS": "1",
    }  # fmt: skip
    [health] = re.findall(r"CMD (\[.*\])$", values("node", "HEALTHCHECK")[0])
    with log.open("wb") as output:
        node = subprocess.Popen(
            json.loads(values("node", "CMD")[0]), cwd=image / "srv", env=told, user=USER,
            group=USER, extra_groups=[], stdout=output, stderr=output, start_new_session=True,
        )  # fmt: skip
        try:
            wait_until_healthy(json.loads(health), told, log)
            with urlopen(f"http://127.0.0.1:{port}/v1/models", timeout=5) as answer:
                assert "smollm2-135m" in answer.read().decode()
        finally:
            node.terminate()
            node.wait(STOP_S)
    states = [json.loads(path.read_text())["state"] for path in home.glob("run/*.json")]
    assert states and set(states) == {"stopped"}


def wait_until_healthy(command: list[str], told: dict[str, str], log: Path) -> None:
    deadline = time.monotonic() + READY_S
    while subprocess.run(command, env=told, capture_output=True, check=False).returncode != 0:
        assert time.monotonic() < deadline, log.read_text()[-2000:]
        time.sleep(0.5)
