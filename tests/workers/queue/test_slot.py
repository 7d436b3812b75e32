"""A worker keeps its name over restarts, and no two living ones share it."""

import subprocess
import sys

from workers.fleet.instance import node_id
from workers.queue.slot import take_slot

HOLD = """
import sys, time
from pathlib import Path
from workers.queue.slot import take_slot
print(take_slot(Path(sys.argv[1]), "cpu").name, flush=True)
time.sleep(600)
"""


def hold(home):
    command = [sys.executable, "-c", HOLD, str(home)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    return process, process.stdout.readline().strip()


def test_the_name_is_of_this_home(tmp_path):
    assert node_id(tmp_path) == node_id(tmp_path) != node_id(tmp_path / "other")


def test_the_name_tells_node_queue_and_slot(tmp_path):
    assert take_slot(tmp_path, "cpu").name == f"{node_id(tmp_path)}-cpu-0"


def test_two_living_workers_have_two_names(tmp_path):
    first, second = take_slot(tmp_path, "cpu"), take_slot(tmp_path, "cpu")
    assert [slot.name[-5:] for slot in (first, second)] == ["cpu-0", "cpu-1"]
    assert take_slot(tmp_path, "gpu").name.endswith("gpu-0")


def test_a_freed_name_is_taken_again(tmp_path):
    slot = take_slot(tmp_path, "cpu")
    slot.free()
    assert take_slot(tmp_path, "cpu").name == slot.name


def test_a_killed_workers_name_is_its_successors(tmp_path):
    process, name = hold(tmp_path)
    try:
        assert take_slot(tmp_path, "cpu").name != name
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    assert take_slot(tmp_path, "cpu").name == name
