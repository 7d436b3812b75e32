"""The systemd unit is one that systemd takes, keeps the node in, and gives time to stop."""

import configparser
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from workers import keeper
from workers.settings import Settings

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "systemd"
HONCHO_KILLS_S = 5
EXPOSURE_MOST = 20  # tenths, as systemd-analyze security counts
needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed"
)


class Repeated(dict):
    """A key of a unit that comes again is added to what it was."""

    def __setitem__(self, key, value):
        if isinstance(value, list) and key in self:
            value = [*self[key], *value]
        super().__setitem__(key, value)


def unit(name: str) -> dict[str, dict[str, str]]:
    """Sections of a unit; of a key that comes twice all values, a line each."""
    parser = configparser.RawConfigParser(strict=False, dict_type=Repeated, interpolation=None)
    parser.optionxform = str
    parser.read_string((FOLDER / name).read_text())
    return {section: dict(parser[section]) for section in parser.sections()}


@pytest.fixture
def installed(tmp_path):
    """The unit with its GPU drop-in, as if installed, with programs of this machine."""
    text = (FOLDER / "lockstep@.service").read_text()
    (tmp_path / "lockstep@.service").write_text(
        text.replace("/opt/lockstep/.venv/bin/honcho", sys.executable)
    )
    drop_in = tmp_path / "lockstep@.service.d"
    drop_in.mkdir()
    shutil.copy(FOLDER / "gpu.conf", drop_in)
    return tmp_path


def analyze(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["systemd-analyze", *arguments], cwd=folder, capture_output=True, text=True, check=False
    )


@needs_systemd
def test_systemd_takes_the_unit_and_finds_nothing_to_say(installed):
    done = analyze("verify", "--man=no", "./lockstep@a.service", folder=installed)
    assert (done.returncode, done.stderr) == (0, "")


@needs_systemd
def test_systemd_would_say_what_is_wrong(installed):
    with (installed / "lockstep@.service").open("a") as file:
        file.write("\n[Service]\nProtectSytem=strict\n")
    done = analyze("verify", "--man=no", "./lockstep@a.service", folder=installed)
    assert "ProtectSytem" in done.stderr


@needs_systemd
def test_the_unit_is_confined(installed):
    shutil.rmtree(installed / "lockstep@.service.d")
    most = f"--threshold={EXPOSURE_MOST}"
    done = analyze(
        "security", "--offline=true", most, "--no-pager", "./lockstep@.service", folder=installed
    )
    assert done.returncode == 0, done.stdout[-300:]


def test_there_is_time_to_stop():
    service = unit("lockstep@.service")["Service"]
    assert service["KillMode"] == "mixed", "honcho is asked, and asks the others"
    assert "KillSignal" not in service, "SIGTERM"
    node_s = keeper.DRAIN_S + keeper.STORE_DRAIN_S + 2 * keeper.KILL_S
    assert node_s < HONCHO_KILLS_S < int(service["TimeoutStopSec"].removesuffix("s"))


def test_what_dies_in_it_does_not_end_it():
    service = unit("lockstep@.service")["Service"]
    assert service["OOMPolicy"] == "continue" and service["Restart"] == "always"


def test_it_writes_only_where_it_says():
    """One folder for each node, the same in the three places that name it."""
    service = unit("lockstep@.service")["Service"]
    assert service["StateDirectory"] == "lockstep/%i" and service["ProtectSystem"] == "strict"
    assert "LOCKSTEP_HOME=/var/lib/lockstep/%i" in service["Environment"]
    assert unit("lockstep@.service")["Unit"]["RequiresMountsFor"] == "/var/lib/lockstep/%i"


def test_every_setting_that_the_files_name_exists():
    known = {f"LOCKSTEP_{name.upper()}" for name in Settings.model_fields}
    for path in FOLDER.iterdir():
        named = set(re.findall(r"LOCKSTEP_[A-Z_]+", path.read_text()))
        assert named <= known, path.name


def test_the_example_of_settings_is_one_that_the_node_reads(monkeypatch, tmp_path):
    lines = (FOLDER / "lockstep.env").read_text().splitlines()
    told = dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))
    monkeypatch.chdir(tmp_path)
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    assert Settings().redis_url == told["LOCKSTEP_REDIS_URL"]
