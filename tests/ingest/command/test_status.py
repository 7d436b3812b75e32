"""What `lockstep status` says of sessions and of classes."""

import json

from ingest.command.classes import kept, promise, wait_now, waiting
from ingest.command.main import run
from ingest.command.status import sessions_line, show_node
from ingest.health.pulse import Pulse
from ingest.metrics.class_rows import class_rows
from workers.sla import SlaTable
from workers.wire import PoolLoad, Pressure

MIB = float(1 << 20)
FOLDER = {"sessions": 12.0, "bytes": 300.5 * MIB, "quota_bytes": 1024 * MIB}


def load(worker: str, kv: dict[str, float]) -> PoolLoad:
    return PoolLoad(pool="cpu", worker=worker, state="ready", kv=kv)


def test_pools_of_a_node_share_a_folder_and_count_for_themselves():
    cpu = load("a1-cpu-0", FOLDER | {"hits": 3.0, "misses": 1.0, "tokens_ram": 1200.0})
    gpu = load("a1-gpu-0", FOLDER | {"hits": 1.0, "misses": 2.0, "tokens_disk": 34.0})
    assert sessions_line([cpu, gpu]) == (
        "sessions: 12, 300.5 of 1,024 MiB; 4 of 7 prompts begin with what is kept"
        " (tokens: RAM 1,200, page cache 0, disk 34)"
    )


def test_nodes_have_folders_of_their_own():
    loads = [load("a1-cpu-0", FOLDER), load("b2-cpu-0", FOLDER), load("b2-gpu-0", {})]
    assert sessions_line(loads).startswith("sessions: 24, 601.0 of 2,048 MiB; 0 of 0 prompts")


def test_a_pool_that_says_nothing_of_sessions_has_none():
    assert sessions_line([load("a1-cpu-0", {})]).startswith("sessions: 0, 0.0 MiB;")


def test_classes_tell_what_they_promise_what_waits_and_what_was_kept():
    promises = {("realtime", "kept"): 97, ("realtime", "ttft"): 2, ("realtime", "overloaded"): 1}
    streams = {"realtime": 4, "standard": 0, "batch": 900}
    pulse = Pulse(streams, {}, [], 1, promises=promises | {("realtime", "tokens"): 5000})
    full = {"batch": Pressure(waiting=900, most=800, wait_ms=61_000.0, retry_ms=9_000.0)}
    realtime, standard, batch = class_rows(pulse, SlaTable(), full)
    assert (kept(realtime), kept(standard)) == ("97 % (99 %)", "– (95 %)")
    assert realtime["outcomes"] == {"kept": 97, "ttft": 2, "overloaded": 1}
    assert promise(realtime) == "first token in 2.0 s, 100 ms a token"
    assert promise(batch) == "end in 60 min"
    assert promise(batch | {"deadline_ms": 28_800_000}) == "end in 8 h"
    assert (waiting(realtime), waiting(batch)) == ("4", "900 of 800")
    assert (waiting(batch | {"waiting": 0}), wait_now(batch)) == ("0", "61.0 s")
    assert wait_now(realtime) == wait_now(batch | {"wait_ms": 0.2}) == ""


def test_a_person_is_shown_no_rank_and_nothing_that_is_empty(store, capfd):
    fields = {"status": "queued", "rank": 1_790_000_000_000, "metadata": "{}", "pool": "cpu"}
    store.redis.hset(store.keys.job("r1"), mapping=fields)
    assert run(["status", "r1"]) == 0
    shown = capfd.readouterr().out
    assert "queued" in shown and "rank" not in shown and "metadata" not in shown
    assert run(["status", "r1", "--json"]) == 0
    told = json.loads(capfd.readouterr().out)
    assert (told["rank"], told["metadata"]) == (1_790_000_000_000, {})


def test_a_line_of_80_holds_each_pool_and_the_reason_stands_below(capsys):
    note = "no NVIDIA driver: libcuda.so.1 is missing"
    gpu = PoolLoad(pool="gpu", worker="a-machine-absent", state="absent", note=note)
    pulse = Pulse(dict.fromkeys(SlaTable().names, 0), {"gpu": 0}, [gpu], 1)
    show_node(pulse, class_rows(pulse, SlaTable(), {}), [], as_json=False)
    lines = capsys.readouterr().out.splitlines()
    assert f"gpu: {note}" in lines
    [row] = [line for line in lines if "a-machine-absent" in line]
    assert "absent" in row and "0/0" in row and len(row.rstrip()) <= 80
