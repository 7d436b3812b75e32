"""Power cuts at every point of a conversation: never wrong bytes, never a lost commit."""

import shutil
from pathlib import Path
from random import Random

import pytest

from kv_tier.files import OsFiles
from kv_tier.objects import ObjectStore
from tests.kv_tier.conversation import TURNS, check, check_objects, talk
from tests.kv_tier.power_cut import Event, RecordingFiles, after_cut

CUTS = 3000


@pytest.fixture(scope="module")
def recorded(tmp_path_factory) -> tuple[list[Event], Path]:
    """One conversation, and the folder that it was in."""
    top = tmp_path_factory.mktemp("recorded")
    files = RecordingFiles()
    talk(top / "kv", files, files.told)
    return files.events, top


def cut(events: list[Event], top: Path, seed: int, target: Path) -> dict[str, int]:
    """At a place and with a loss that follow from the seed alone."""
    rng = Random(seed)
    return after_cut(events[: rng.randrange(1, len(events) + 1)], top, rng, target)


def test_a_power_cut_leaves_the_last_commit_and_no_wrong_byte(recorded, scratch):
    for seed in range(CUTS):
        target = scratch / str(seed)
        told = cut(*recorded, seed, target)
        check(target / "kv", **told)
        shutil.rmtree(target)


@pytest.mark.parametrize("left_out", ["sync", "sync_folder"])
def test_each_sync_is_needed_and_without_it_nothing_wrong_is_served(recorded, scratch, left_out):
    """Commits are lost then, which shows that the simulator bites; checksums tell it."""
    events, top = recorded
    lost = 0
    for seed in range(300):
        target = scratch / str(seed)
        told = cut([event for event in events if event[0] != left_out], top, seed, target)
        check_objects(ObjectStore(target / "kv"))
        try:
            check(target / "kv", **told)
        except Exception:  # lost: the head, an object that it names, or the fence
            lost += 1
        shutil.rmtree(target)
    assert lost > 30


def test_a_session_goes_on_after_a_power_cut(recorded, scratch):
    for seed in range(100):
        target = scratch / str(seed)
        told = cut(*recorded, seed, target) | {"generation": 2 * TURNS}
        talk(target / "kv", OsFiles(), lambda what, number, told=told: told.update({what: number}))
        check(target / "kv", **told, may_be_next=False)
        shutil.rmtree(target)
