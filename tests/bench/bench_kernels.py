"""How fast each op is, beside what the machine allows.

    python tests/bench/bench_kernels.py [--op NAME] [--threads N] [--json]

Every figure is the median of many runs of a few milliseconds, in the thread's own processor time
(wall time with several threads), so that other work on the machine counts little. Weights are taken
in turn from a set larger than the second-level cache, as a model takes them. Limits come from
probe.c in the same run, one thread: bytes read per second, and int8 multiply-adds per second of
maddubs + paddw. "limit" is the larger of the two shares, per thread.
"""

import argparse
import ctypes
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from kernels.cpu.host import CpuOps
from kernels.layout import packed_bytes
from kernels.ops import KvArena, Matrix, Step, kv_shape, quantized_rows
from kernels.tables import rope_table
from tests.bench.bench_state import bench_state

SET_BYTES = 64 << 20  # weights of one case together, larger than L2
RUNS, RUN_S = 15, 0.004
SHAPES = [(576, 576), (1536, 576), (576, 1536), (4096, 4096)]  # rows, columns
TOKENS = (1, 2, 4, 8, 16, 64, 512)
Row = dict[str, Any]


def seconds(call: Callable[[], None], threads: int = 1) -> float:
    """Median time of one call."""
    clock = time.thread_time if threads == 1 else time.perf_counter
    call()
    begin = clock()
    call()
    count = max(1, int(RUN_S / max(clock() - begin, 1e-7)))
    times = []
    for _ in range(RUNS):
        begin = clock()
        for _ in range(count):
            call()
        times.append((clock() - begin) / count)
    return statistics.median(times)


def limits() -> dict[str, float]:
    """What one thread can read and multiply here, now."""
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "probe.so"
        source = Path(__file__).parent / "probe.c"
        subprocess.run(
            ["gcc", "-O3", "-shared", "-fPIC", str(source), "-o", str(library)], check=True
        )
        probe = ctypes.CDLL(str(library))
        for function in (probe.probe_read, probe.probe_update, probe.probe_maddubs):
            function.restype = ctypes.c_double
        data = np.ones(256 << 20, np.uint8)
        address, size = ctypes.c_void_p(data.ctypes.data), ctypes.c_long(data.size)
        read = statistics.median(probe.probe_read(address, size) for _ in range(RUNS))
        update = statistics.median(probe.probe_update(address, size) for _ in range(RUNS))
        rounds = ctypes.c_long(1_000_000)
        maddubs = statistics.median(probe.probe_maddubs(rounds) for _ in range(RUNS))
    return {
        "read_gb_per_s": read / 1e9,
        "update_gb_per_s": update / 1e9,
        "maddubs_gmacs_per_core": maddubs / 1e9,
    }


def weights(kind: str, rows: int, cols: int) -> list[Matrix]:
    """Matrices that fill SET_BYTES, each aligned to 64 bytes as in a pack."""
    size = packed_bytes(kind, rows, cols)
    count = max(2, min(64, SET_BYTES // size))
    rng = np.random.default_rng(0)
    whole = rng.integers(0, 2**63, (size * count + 64) // 8 + 8, dtype=np.int64).view(np.uint8)
    whole[1::2] &= 0x3B  # no float16 in it is infinite or NaN
    if kind == "f32":
        whole.view(np.float32)[...] = rng.standard_normal(whole.size // 4)
    begin = -whole.ctypes.data % 64
    step = size + -size % 64
    count = min(count, (whole.size - begin) // step)
    return [
        Matrix(kind, rows, cols, whole[begin + i * step : begin + i * step + size])
        for i in range(count)
    ]


def bench_matmul(ops: CpuOps, kind: str, threads: int, limit: dict[str, float]) -> list[Row]:
    found = []
    shapes = [(49152, 576)] if kind == "q8_0" else [] if kind == "f32" else SHAPES
    for rows, cols in shapes or [(256, 512)]:
        matrices = weights(kind, rows, cols)
        for num_tokens in TOKENS if rows < 10_000 else TOKENS[:5]:
            x = np.random.default_rng(1).standard_normal((num_tokens, cols)).astype(np.float32)
            quants = quantized_rows(num_tokens, cols)
            ops.quantize_rows(quants, x)
            out = np.empty((num_tokens, rows), np.float32)
            turn = iter(range(10**9))

            def call(
                out=out, quants=quants, x=x, matrices=matrices, turn=turn
            ) -> None:  # bound now, not when called
                w = matrices[next(turn) % len(matrices)]
                if kind == "f32":
                    ops.matmul_f32(out, x, w)
                else:
                    ops.matmul(out, quants, w)

            each = seconds(call, threads)
            gmacs = rows * cols * num_tokens / each / 1e9 / threads
            gb = matrices[0].data.size / each / 1e9
            ratio = max(
                gb / threads / limit["read_gb_per_s"], gmacs / limit["maddubs_gmacs_per_core"]
            )
            name = "matmul_f32" if kind == "f32" else f"matmul_{kind}"
            found.append(
                row(name, f"{rows} x {cols}", num_tokens, threads, each)
                | {"gmacs_per_core": gmacs, "gb_per_s": gb, "of_limit": ratio}
            )
    return found


def row(op: str, case: str, num_tokens: int, threads: int, each: float) -> Row:
    return {"op": op, "case": case, "tokens": num_tokens, "threads": threads, "us": each * 1e6}


def bench_attention(ops: CpuOps, threads: int, limit: dict[str, float]) -> list[Row]:
    """9 query heads, 3 kv heads of 64: decode of some sequences, one chunk of a prefill."""
    found = []
    for sequences, chunk, context in (
        (1, 1, 256),
        (1, 1, 4096),
        (8, 1, 1024),
        (1, 256, 256),
        (1, 256, 2048),
    ):
        blocks = -(-context // 256)
        kv = KvArena(np.zeros(kv_shape(sequences * blocks, 1, 3, 64), np.float16))
        tables = np.arange(sequences * blocks, dtype=np.int32).reshape(sequences, blocks)
        positions = np.tile(np.arange(context - chunk, context, dtype=np.int32), sequences)
        index = np.repeat(np.arange(sequences, dtype=np.int32), chunk)
        step = Step(positions, positions, index, positions.astype(np.int64), tables, positions)
        q = np.random.default_rng(0).standard_normal((positions.size, 9, 64)).astype(np.float32)
        out = np.empty_like(q)
        each = seconds(
            lambda q=q, out=out, kv=kv, step=step: ops.attention(out, q, kv, 0, step, 0.125)
        )
        macs = float((positions + 1).sum()) * 9 * 64 * 2
        read = sequences * context * 3 * 64 * 2 * 2
        found.append(
            row("attention", f"context {context}", positions.size, threads, each)
            | {"gmacs_per_core": macs / each / 1e9 / threads, "gb_per_s": read / each / 1e9}
        )
    return found


def bench_rows(ops: CpuOps, threads: int) -> list[Row]:
    """What works on rows of the default model: 576 hidden, 1536 ffn, 49152 vocabulary."""
    found = []
    rng = np.random.default_rng(0)
    table = rope_table(1e5, 64, 2048, None, adjacent=True)
    for num_tokens in (1, 16, 256):
        x = rng.standard_normal((num_tokens, 576)).astype(np.float32)
        wide, wider = (rng.standard_normal((num_tokens, 1536)).astype(np.float32) for _ in range(2))
        out, wide_out, weight = np.empty_like(x), np.empty_like(wide), x[0].copy()
        quants, wide_quants = quantized_rows(num_tokens, 576), quantized_rows(num_tokens, 1536)
        positions = np.arange(num_tokens, dtype=np.int32)
        kv = KvArena(np.zeros(kv_shape(2, 1, 3, 64), np.float16))
        heads, keys = x.reshape(num_tokens, 9, 64), x[:, :192].copy().reshape(num_tokens, 3, 64)
        slots = positions.astype(np.int64)
        calls: dict[str, Callable[[], None]] = {
            "quantize_rows": lambda: ops.quantize_rows(quants, x),  # noqa: B023
            "quantize_rows wide": lambda: ops.quantize_rows(wide_quants, wide),  # noqa: B023
            "rms_norm": lambda: ops.rms_norm(out, x, weight, 1e-5),  # noqa: B023
            "rope": lambda: ops.rope(heads, positions, table),  # noqa: B023
            "store_kv": lambda: ops.store_kv(kv, 0, keys, keys, slots),  # noqa: B023
            "silu_mul": lambda: ops.silu_mul(wide_out, wide, wider),  # noqa: B023
            "gelu_mul": lambda: ops.gelu_mul(wide_out, wide, wider),  # noqa: B023
            "sigmoid_mul": lambda: ops.sigmoid_mul(wide_out, wide, wider),  # noqa: B023
            "add": lambda: ops.add(out, x),  # noqa: B023
            "add_norm": lambda: ops.add_norm(out, quants, x, x, weight, 1e-5),  # noqa: B023
        }
        for name, call in calls.items():
            op, _, case = name.partition(" ")
            each = seconds(call, threads)
            found.append(row(op, case or "default model", num_tokens, threads, each))
    logits = rng.standard_normal((16, 49152)).astype(np.float32)
    sums, best = np.empty(16, np.uint64), np.empty(16, np.int32)
    for num_rows in (1, 16):
        some = logits[:num_rows]
        each = seconds(lambda: ops.logits_sum(sums[:num_rows], some), threads)  # noqa: B023
        found.append(row("logits_sum", "vocabulary 49152", num_rows, threads, each))
        each = seconds(lambda: ops.logits_argmax(best[:num_rows], some), threads)  # noqa: B023
        found.append(row("logits_argmax", "vocabulary 49152", num_rows, threads, each))
    return found


def bench_fused(ops: CpuOps, threads: int) -> list[Row]:
    """What a layer of the default model projects, and its attention over 256 keys."""
    found = []
    qkv = [weights("q4_1", rows, 576) for rows in (576, 192, 192)]
    both = [weights("q4_1", 1536, 576) for _ in range(2)]
    table = rope_table(1e5, 64, 2048, None, adjacent=True)
    kv = KvArena(np.zeros(kv_shape(8, 1, 3, 64), np.float16))
    for num_tokens in (1, 8):
        x = np.random.default_rng(1).standard_normal((num_tokens, 576)).astype(np.float32)
        quants, wide = quantized_rows(num_tokens, 576), quantized_rows(num_tokens, 1536)
        ops.quantize_rows(quants, x)
        outs = tuple(np.empty((num_tokens, w[0].rows), np.float32) for w in qkv)
        gate, up = (np.empty((num_tokens, 1536), np.float32) for _ in "gu")
        index = np.arange(num_tokens, dtype=np.int32)
        positions = np.full(num_tokens, 255, np.int32)
        step = Step(
            index, positions, index, index.astype(np.int64) * 256 + 255, index.reshape(-1, 1), index
        )
        q, k, v = (out.reshape(num_tokens, -1, 64) for out in outs)
        mixed, turn = np.empty_like(q), iter(range(10**9))

        def project(quants=quants, outs=outs, turn=turn) -> None:
            i = next(turn)
            ops.project(outs, quants, tuple(w[i % len(w)] for w in qkv), (None,) * 3)

        def gated(quants=quants, wide=wide, gate=gate, up=up, turn=turn) -> None:
            i = next(turn)
            pair = tuple(w[i % len(w)] for w in both)
            ops.gated_project(wide, gate, up, quants, pair, (None, None), "silu")

        def attend(mixed=mixed, quants=quants, q=q, k=k, v=v, step=step) -> None:
            ops.attend(mixed, quants, q, k, v, table, kv, 0, step, 0.125)

        for op, call in (("project", project), ("gated_project", gated), ("attend", attend)):
            found.append(row(op, "default model", num_tokens, threads, seconds(call, threads)))
    return found


def measure(wanted: str | None, threads: int, limit: dict[str, float]) -> list[Row]:
    ops, found = CpuOps(threads), []
    for kind in ("q4_0", "q4_1", "q8_0", "f32"):
        if wanted in (None, "matmul", f"matmul_{kind}"):
            found += bench_matmul(ops, kind, threads, limit)
    if wanted in (None, "attention"):
        found += bench_attention(ops, threads, limit)
    if wanted in (None, "project", "gated_project", "attend"):
        found += [r for r in bench_fused(ops, threads) if wanted in (None, r["op"])]
    if wanted in (None, "gated_delta_rule", "conv1d", "l2_norm", "delta_gates"):
        for r in bench_state(ops, threads, seconds):
            if "gb_per_s" in r:
                r["of_limit"] = r["gb_per_s"] / threads / limit["update_gb_per_s"]
            found += [r] if wanted in (None, r["op"]) else []
    if wanted is None or not wanted.startswith(("matmul", "attention")):
        found += [r for r in bench_rows(ops, threads) if wanted in (None, r["op"])]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--op", help="only this op, e.g. matmul_q4_0 or rms_norm")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="one object with limits and rows")
    args = parser.parse_args()
    limit = limits()
    rows = measure(args.op, args.threads, limit)
    if args.json:
        print(json.dumps({"limits": limit, "rows": rows}))
        return
    print(
        f"limits, one thread: read {limit['read_gb_per_s']:.1f} GB/s, "
        f"read and written {limit['update_gb_per_s']:.1f} GB/s, "
        f"maddubs {limit['maddubs_gmacs_per_core']:.0f} G multiply-adds/s"
    )
    print(
        f"{'op':16} {'case':18} {'tokens':>6} {'us':>10} {'G/s core':>9} {'GB/s':>6} {'limit':>6}"
    )
    for r in rows:
        rate, gb, share = r.get("gmacs_per_core", 0), r.get("gb_per_s", 0), r.get("of_limit", 0)
        print(
            f"{r['op']:16} {r['case']:18} {r['tokens']:6} {r['us']:10.1f} "
            f"{rate:9.1f} {gb:6.1f} {share:6.0%}"
        )


if __name__ == "__main__":
    main()
