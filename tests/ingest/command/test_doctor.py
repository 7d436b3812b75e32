"""The doctor finds what is wrong, says what to do, and changes nothing."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from redis import Redis

from ingest.command import doctor
from workers.settings import Settings

ROOT = Path(__file__).parents[3]
RUN = "import typer; from ingest.command.doctor import doctor_command; typer.run(doctor_command)"


def parts(findings) -> dict[str, doctor.Finding]:
    return {finding.part: finding for finding in findings}


def test_a_finding_that_needs_nothing_is_good():
    assert doctor.Finding("disk", "enough room").is_good
    assert not doctor.Finding("disk", "full", "make room").is_good


def test_without_a_node_it_says_how_to_start_one(tmp_path, free_port):
    ports = {"LOCKSTEP_PORT": str(free_port()), "LOCKSTEP_STORE_PORT": str(free_port())}
    done = subprocess.run(
        [sys.executable, "-c", RUN, "--json"], cwd=ROOT, capture_output=True, text=True,
        env={**os.environ, "LOCKSTEP_HOME": str(tmp_path / "home"), **ports},
    )  # fmt: skip
    said = json.loads(done.stdout)
    found = {finding["part"]: finding for finding in said["findings"]}
    assert done.returncode == 1 and said["healthy"] is False
    assert found["node"]["todo"] == "make start"
    assert found["python"]["todo"] == found["ports"]["todo"] == ""
    assert not (tmp_path / "home").exists()


def test_a_wrong_setting_is_a_finding(monkeypatch):
    monkeypatch.setattr(doctor, "settings", lambda: Settings(port=0))
    assert not parts(doctor.examine())["settings"].is_good


def test_a_build_is_fresh_until_a_source_changes(tmp_path):
    folder = tmp_path / "kernels" / "cpu"
    folder.mkdir(parents=True)
    assert parts(doctor.build(tmp_path))["build"].todo == "make build"
    (folder / "host.py").write_text("a = 1\n")
    digest = doctor.digest_of(folder / "host.py")
    record = {"compiled": {"kernels/cpu/host.py": digest}}
    (folder / "build_hash.json").write_text(json.dumps(record))
    assert all(finding.is_good for finding in doctor.build(tmp_path))
    (folder / "host.py").write_text("a = 2\n")
    (stale,) = doctor.build(tmp_path)
    assert "kernels/cpu/host.py" in stale.what and stale.todo == "make build"


def test_a_restarted_program_is_well_but_its_end_is_told():
    state = {"state": "running", "pid": 7, "restarts": 2, "last_exit": {"how": "killed by SIGKILL"}}
    found = doctor.keeper("cpu", state)
    assert found.is_good and "2 restarts" in found.what and "SIGKILL" in found.what


def test_a_program_that_waits_to_be_started_again_is_not_well():
    state = {"state": "waiting", "pid": None, "restarts": 9, "last_exit": {"how": "exit code 1"}}
    assert not doctor.keeper("cpu", state).is_good


def test_a_name_of_the_procfile_without_a_keeper_is_found(tmp_path):
    found = parts(doctor.keepers(tmp_path))
    assert {"store", "api", "router", "cpu", "gpu", "webhooks"} == found.keys()
    assert not any(finding.is_good for finding in found.values())


def test_a_server_that_keeps_everything_is_good(redis_url):
    redis = Redis.from_url(redis_url, decode_responses=True)
    assert all(finding.is_good for finding in doctor.server_settings(redis))


@pytest.mark.parametrize(
    "setting, bad, word",
    [("maxmemory-policy", "allkeys-lru", "noeviction"), ("appendonly", "no", "appendonly yes")],
)
def test_a_server_that_may_forget_is_not(redis_url, setting, bad, word):
    redis = Redis.from_url(redis_url, decode_responses=True)
    good = redis.config_get(setting)[setting]
    redis.config_set(setting, bad)
    try:
        found = list(doctor.server_settings(redis))
    finally:
        redis.config_set(setting, good)
    assert any(word in finding.todo for finding in found)


def test_a_store_that_does_not_answer_is_a_finding(free_port):
    config = Settings(redis_url=f"redis://127.0.0.1:{free_port()}/0")
    (found,) = doctor.store(config)
    assert "does not answer" in found.what and found.todo


def test_a_door_that_does_not_answer_is_a_finding(free_port):
    assert not doctor.door(Settings(port=free_port())).is_good
