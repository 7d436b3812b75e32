"""The doctor, before a node runs: each breakage is found, named, and told with what to do."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ingest.command.doctor import app, files, machine, store
from ingest.command.doctor.finding import Finding
from workers.model import catalog
from workers.model.build import PACK
from workers.settings import Settings

ROOT = Path(__file__).parents[3]
GGUF = ROOT / "tests" / "golden" / "tiny_llama.Q4_0.gguf"


def names(findings) -> list[str]:
    """What is wrong; each says what to do, and what is well has nothing to do."""
    found = list(findings)
    assert all((finding.name == "ok") == (finding.todo == "") for finding in found)
    return [finding.name for finding in found if finding.name != "ok"]


def test_a_finding_that_needs_nothing_is_good():
    assert Finding("disk", "enough room").is_good
    assert not Finding("disk", "full", "make room", "disk-full").is_good


def test_without_a_node_it_says_how_to_start_one_and_changes_nothing(tmp_path, free_port):
    ports = {"LOCKSTEP_PORT": str(free_port()), "LOCKSTEP_STORE_PORT": str(free_port())}
    done = subprocess.run(
        [sys.executable, "-m", "ingest.command.main", "doctor", "--json"],
        cwd=ROOT, capture_output=True, text=True,
        env={**os.environ, "LOCKSTEP_HOME": str(tmp_path / "home"), **ports},
    )  # fmt: skip
    said = json.loads(done.stdout)
    found = {finding["part"]: finding for finding in said["findings"]}
    assert done.returncode == 1 and said["healthy"] is False
    assert found["node"] == {
        "part": "node", "what": "does not run", "todo": "make start", "name": "node-stopped"
    }  # fmt: skip
    assert found["model"]["name"] == "model-missing"
    assert found["python"]["name"] == found["ports"]["name"] == "ok"
    assert not (tmp_path / "home").exists()


def test_a_person_reads_what_is_wrong_and_what_to_do():
    bad = Finding("disk", "is full", "make room", "disk-full")
    assert app.line(bad) == "BAD  disk      is full\n               -> make room"
    assert app.line(Finding("disk", "enough room")) == "ok   disk      enough room"


@pytest.mark.parametrize("raised", [None, UnicodeDecodeError("utf-8", b"\xff", 0, 1, "no")])
def test_wrong_settings(monkeypatch, raised):
    def read():
        if raised:
            raise raised
        return Settings(port=0)

    monkeypatch.setattr(app, "settings", read)
    assert "settings-wrong" in names(app.examine())


def test_a_build_that_is_missing_or_stale(tmp_path):
    folder = tmp_path / "kernels" / "cpu"
    folder.mkdir(parents=True)
    assert names(machine.build(tmp_path)) == ["build-missing"]
    (folder / "host.py").write_text("a = 1\n")
    digest = machine.digest_of(folder / "host.py")
    record = {"compiled": {"kernels/cpu/host.py": digest}}
    (folder / "build_hash.json").write_text(json.dumps(record))
    assert names(machine.build(tmp_path)) == []
    (folder / "host.py").write_text("a = 2\n")
    (stale,) = machine.build(tmp_path)
    assert (stale.name, stale.todo) == ("build-stale", "make build")
    assert "kernels/cpu/host.py" in stale.what


def test_too_few_open_files():
    assert machine.open_files(256).name == "files-limited"
    assert machine.open_files(65_536).is_good and machine.open_files(-1).is_good


@pytest.mark.parametrize(
    ("wanted", "switch", "free_mib", "expected"),
    [
        (True, "always madvise [never]", 900, ["huge-pages"]),
        (True, None, 900, ["huge-pages"]),
        (True, "always [madvise] never", 100, ["huge-pages"]),
        (True, "always [madvise] never", 900, []),
        (False, "always madvise [never]", 900, []),
    ],
)
def test_no_huge_pages_where_they_are_asked_for(tmp_path, wanted, switch, free_mib, expected):
    enabled, memory = tmp_path / "enabled", tmp_path / "meminfo"
    if switch is not None:
        enabled.write_text(switch)
    memory.write_text(f"MemTotal:  1 kB\nMemAvailable:  {free_mib << 10} kB\n")
    assert names(machine.huge_pages(wanted, 500 << 20, enabled, memory)) == expected


def test_a_full_disk(tmp_path, monkeypatch):
    full = shutil.disk_usage(tmp_path)._replace(free=1 << 20)
    monkeypatch.setattr("ingest.command.preflight.shutil.disk_usage", lambda path: full)
    found = [f for f in files.examine(Settings(home=tmp_path), deep=False) if f.part == "disk"]
    assert names(found) == ["disk-full"] and "1 MiB free" in found[0].what


def test_a_folder_of_somebody_else(tmp_path, monkeypatch):
    (tmp_path / "store").mkdir()
    monkeypatch.setattr("os.access", lambda path, mode: path.name != "store")
    (found,) = files.permissions(tmp_path)
    assert found.name == "permissions" and "chown" in found.todo


def test_a_secret_that_others_can_read(tmp_path):
    secret = tmp_path / "webhook_secret"
    secret.write_text("whsec_")
    secret.chmod(0o644)
    (found,) = files.permissions(tmp_path)
    assert (found.name, found.todo) == ("permissions", f"chmod 600 {secret}")
    secret.chmod(0o600)
    assert names(files.permissions(tmp_path)) == []


@pytest.mark.parametrize(
    ("setting", "expected"), [(None, "secret-missing"), ("whsec_short", "secret-missing")]
)
def test_no_secret_to_sign_with(tmp_path, setting, expected):
    assert files.secret(Settings(home=tmp_path, webhook_secret=setting)).name == expected


@pytest.fixture
def packed(tmp_path):
    """Settings of a home with a small model."""
    catalog.add(GGUF, "tiny", tmp_path, progress=None)
    return Settings(home=tmp_path, model="tiny")


def test_a_model_that_is_as_it_was_packed(packed):
    assert files.model(packed, deep=True).is_good
    assert files.pack_bytes(packed) > 10_000


def test_a_model_that_is_not_there(tmp_path):
    assert files.model(Settings(home=tmp_path, model="nobody"), deep=False).name == "model-missing"
    assert files.pack_bytes(Settings(home=tmp_path, model="nobody")) == 0


def test_a_pack_of_another_version(packed):
    pack = packed.home / "models" / "tiny" / PACK
    raw = bytearray(pack.read_bytes())
    raw[8] += 1  # its version, in the header (PACK.md)
    pack.write_bytes(raw)
    found = files.model(packed, deep=False)
    assert found.name == "model-stale", found


def test_weights_that_are_not_those_of_the_card(packed):
    card = packed.home / "models" / "tiny" / "card.json"
    card.write_text(json.dumps({**json.loads(card.read_text()), "weights_digest": "0" * 32}))
    assert files.model(packed, deep=False).name == "model-digest"


def test_a_flipped_bit_in_the_weights_is_found_by_reading_them(packed):
    pack = packed.home / "models" / "tiny" / PACK
    raw = bytearray(pack.read_bytes())
    raw[-5000] ^= 1
    pack.write_bytes(raw)
    assert files.model(packed, deep=False).is_good
    assert files.model(packed, deep=True).name == "model-digest"


@pytest.mark.parametrize("setting", ["port", "store_port"])
def test_a_port_that_is_taken(tmp_path, free_port, setting):
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        ports = {"port": free_port(), "store_port": free_port()}
        ports[setting] = taken.getsockname()[1]
        found = list(app.stopped_node(Settings(home=tmp_path, **ports)))
    assert names(found) == ["node-stopped", "port-taken"]
    assert str(ports[setting]) in found[1 if setting == "port" else 2].what


def test_a_damaged_log_of_the_store(tmp_path):
    folder = tmp_path / "appendonlydir"
    folder.mkdir()
    (folder / "appendonly.aof.manifest").write_text("file appendonly.aof.1.incr.aof seq 1 type i\n")
    whole = b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$1\r\nv\r\n"
    log = folder / "appendonly.aof.1.incr.aof"
    log.write_bytes(whole)
    assert names(store.log(tmp_path)) == []
    log.write_bytes(whole + bytes(100))
    (found,) = store.log(tmp_path)
    assert found.name == "store-log-damaged" and "100 bytes" in found.what
    assert log.read_bytes() == whole + bytes(100), "it changes nothing"
