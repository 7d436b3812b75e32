"""`lockstep bench gpu`: all of it runs on an emulated driver, and goes on where it stopped."""

import json

import pytest

from ingest.command.bench.app import GPU_PARTS
from ingest.command.bench.gpu import run as gpu_run
from ingest.command.bench.gpu.bench import Bench
from ingest.command.bench.gpu.kernels import gemm_rows, gemv_rows
from ingest.command.bench.gpu.plan import PARTS, REAL, REHEARSAL, TINY, Plan
from ingest.command.bench.gpu.standin import standin
from ingest.command.failure import Failure
from kernels.cuda.device import device_ops
from kernels.layout import dequantize_blocks, unpack_matrix
from kernels.ops import BLOCK_TOKENS
from tests.kernels.cuda.devices import gpu, pycuda_place

__all__ = ["gpu", "pycuda_place"]  # fixtures


def rehearse(out, parts, *, seconds=100, is_fresh=False):
    return gpu_run.run(
        out, seconds=seconds, threads=1, parts=",".join(parts), is_rehearsal=True, is_fresh=is_fresh
    )


@pytest.fixture(scope="module")
def rehearsed(pycuda_place, tmp_path_factory):
    """OUT of a whole rehearsal, in two runs."""
    out = tmp_path_factory.mktemp("bench") / "gpu.json"
    rehearse(out, PARTS[:2])
    rehearse(out, PARTS)
    return out


def test_every_part_has_rows_with_a_number_and_its_unit(rehearsed):
    found = json.loads(rehearsed.read_text())
    assert found["done"] == list(PARTS) == list(GPU_PARTS)
    assert {row["case"] for row in found["rows"]} == set(PARTS)
    assert all("unit" in row and row["ours"] is not None for row in found["rows"])
    assert found["is_rehearsal"] and found["gpu"] == "GPU emulated on the CPU"


def test_both_processors_have_the_same_bits_and_a_session_moves_without_a_trace(rehearsed):
    rows = {row["case"]: row for row in json.loads(rehearsed.read_text())["rows"]}
    assert rows["exact"]["ours"] == 0 and rows["exact"]["compared"] > 1000
    move = rows["move"]
    assert move["same_digests"] and move["written_behind_bytes"] > 0
    tail = move["context"] % BLOCK_TOKENS
    assert 0 < move["moved_bytes"] < move["back_bytes"], f"a tail of {tail} grows on the CPU"


def test_what_was_measured_is_not_measured_again(rehearsed):
    before = rehearsed.read_text()
    rehearse(rehearsed, PARTS)
    assert rehearsed.read_text() == before


def test_a_run_without_time_left_says_what_it_left_out(rehearsed, tmp_path):
    out = tmp_path / "gpu.json"
    found = rehearse(out, ["copy"], seconds=0)
    assert found["rows"] == [] and "no time was left for copy" in found["note"]
    gpu_run.show(json.loads(rehearsed.read_text()) | {"note": "left out"})


def test_without_a_gpu_the_command_fails_and_keeps_what_was_done(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    out = tmp_path / "gpu.json"
    with pytest.raises(Failure, match="ended with 1"):
        gpu_run.run(out, seconds=9, threads=1, parts="copy", is_rehearsal=False, is_fresh=True)


def test_what_kernels_were_measured_with_is_given_back(gpu, tmp_path):
    """The model that is measured afterwards is to fit."""
    bench = Bench(Plan(REHEARSAL, PARTS, tmp_path / "o", 9, 1, True), gpu, device_ops(gpu))
    before = gpu.free_bytes()
    rows = [*gemv_rows(bench, print), *gemm_rows(bench, print)]
    assert rows and gpu.free_bytes() == before


def test_the_stand_ins_weights_have_the_size_of_trained_ones():
    weights = standin(TINY)
    for name in ("blk.0.ffn_up.weight", "blk.0.ffn_down.weight"):
        matrix = weights.matrix(name)
        raw = unpack_matrix(matrix.kind, matrix.data, matrix.rows, matrix.cols)
        values = dequantize_blocks(matrix.kind, raw)
        assert 0.8 < values.std() * matrix.cols**0.5 < 1.25, name
    assert REAL.like.keys["block_count"] == 64
