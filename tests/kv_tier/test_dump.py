"""What dump says of a file: all of it when it is whole, what is wrong when it is not."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from kv_tier.dump import describe, examine, verify_file
from kv_tier.files import OsFiles
from kv_tier.format import CorruptFile
from kv_tier.objects import ObjectStore
from kv_tier.open_object import Missing
from kv_tier.sessions import Sessions, manifest_name
from tests.kv_tier.conversation import SESSION, TENANT, TURNS, talk, tokens_after

ROOT = Path(__file__).parents[2]


@pytest.fixture
def root(scratch) -> Path:
    talk(scratch, OsFiles(), lambda what, number: None)
    return scratch


def head_path(root: Path) -> Path:
    return Sessions(root).folder(TENANT, SESSION) / manifest_name(2 * TURNS)


def test_a_manifest_is_described_by_what_it_says(root):
    facts = describe(head_path(root))
    assert facts["format"] == "manifest"
    assert facts["token_ids"] == list(tokens_after(TURNS))
    assert (facts["num_tokens"], facts["num_kv"]) == (600, 599)
    assert (facts["tenant"], facts["session_id"]) == (TENANT, SESSION)
    assert len(facts["blocks"]) == 2 and facts["checkpoints"][0]["position"] == 599
    assert facts["messages"] == [{"role": "user", "content": "turn 4", "begin": 0, "end": 0}]


def test_an_object_is_described_by_what_it_says(root):
    manifest = describe(head_path(root))
    facts = describe(ObjectStore(root).path("tail", bytes.fromhex(manifest["tail"])))
    assert facts["kind"] == "tail" and facts["num_tokens"] == 599 - 512
    assert facts["key"] == manifest["tail"]
    assert facts["fingerprint"] == manifest["fingerprint"]
    assert facts["payload_offset"] == 4096 and facts["payload_bytes"] == 3000


def test_all_that_was_written_is_sound_and_can_be_said_in_json(root):
    paths = [p for p in root.rglob("*") if p.suffix in (".block", ".tail", ".state", ".manifest")]
    assert len(paths) > 8
    for path in paths:
        assert json.loads(json.dumps(examine(path)))["damage"] is None


def test_damage_is_found_and_told_with_what_can_still_be_read(root):
    kind, key, *_ = next(iter(ObjectStore(root).walk()))
    path = ObjectStore(root).path(kind, key)
    data = bytearray(path.read_bytes())
    data[5000] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptFile):
        verify_file(path)
    facts = examine(path)
    assert "not what was written" in facts["damage"] and facts["key"] == key.hex()


def test_a_manifest_under_another_generations_name_is_damage(root):
    path = head_path(root)
    other = path.with_name(manifest_name(77))
    other.write_bytes(path.read_bytes())
    with pytest.raises(CorruptFile, match="another's name"):
        verify_file(other)


def test_what_is_not_there_is_said_to_be_missing(tmp_path):
    for name in ("a.manifest", "a.block"):
        with pytest.raises(Missing):
            describe(tmp_path / name)


def dump(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kv_tier.dump", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT)


def test_the_command_says_sound_and_ends_with_0(root):
    done = dump(head_path(root))
    assert done.returncode == 0
    assert f"{head_path(root)}: sound" in done.stdout
    assert "… 594 more …" in done.stdout


def test_the_command_says_what_is_wrong_and_ends_with_1(root):
    path = head_path(root)
    path.write_bytes(path.read_bytes()[:-1])
    done = dump(path, "--json")
    assert done.returncode == 1
    assert "not what was written" in json.loads(done.stdout)["damage"]


def test_the_command_explains_itself():
    done = dump("--help")
    assert done.returncode == 0
    assert "whether every byte" in done.stdout
