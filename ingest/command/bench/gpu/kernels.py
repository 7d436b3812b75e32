"""The kernels alone: copied bytes, streamed matrices, products of prefill, attention.

    copy       VRAM to VRAM, bytes read and written
    gemv       each matrix of the model times 1, 4, 16 and 64 tokens: bytes of weights a second
    gemm       the same times 512 and 4096 tokens: integer operations a second
    attention  a chunk of a prompt behind a long context: fma a second, of the peak in float32

Equal matrices take turns, so that no cache holds them; launches are timed as one graph.
"""

from collections.abc import Iterator
from typing import Final

import numpy as np

from ingest.command.bench.gpu.bench import Bench
from ingest.command.bench.gpu.library import library_rates
from ingest.command.bench.gpu.plan import Row, Tell
from ingest.command.bench.gpu.standin import matrix_bytes
from kernels.cuda.graphs import StepPlace, step_bytes
from kernels.layout import packed_bytes
from kernels.ops import BLOCK_TOKENS, F32, KvArena, Matrix, QuantizedRows, Step, kv_shape
from workers.model.build import architecture_of
from workers.model.config import ModelConfig
from workers.model.synth import made_like

LANES: Final = {80: 64}  # float32 fma a clock and multiprocessor; of all others 128


def copy_rows(bench: Bench, tell: Tell) -> Iterator[Row]:
    num_bytes = bench.plan.sizes.copy_bytes
    tell(f"copying {num_bytes >> 20} MiB")
    source = bench.filled((num_bytes,), np.arange(251, dtype=np.uint8))
    target = bench.device.reserve((num_bytes,), np.uint8)
    seconds = bench.gpu_seconds(lambda: bench.device.copy(target, source))
    bench.device.release(source, target)
    yield {"unit": "GB/s", "ours": round(2 * num_bytes / seconds / 1e9, 1), "bytes": num_bytes}


def matrices_of(bench: Bench) -> list[tuple[str, int, int]]:
    """(name, rows, cols) of each shape that a quantised matrix of the model has."""
    like = bench.plan.sizes.like
    found: dict[tuple[int, ...], str] = {}
    for tensor in made_like(like, "shapes", 0).tensors.values():
        if len(tensor.shape) == 2 and tensor.shape[1] % 32 == 0:
            found.setdefault(tensor.shape, tensor.name.split(".")[-2])
    return [(name, shape[0], shape[1]) for shape, name in found.items()]


def _copies(bench: Bench, rows: int, cols: int) -> list[Matrix]:
    """Equal matrices, so many that they fill no cache."""
    num_bytes = packed_bytes("q4_0", rows, cols)
    count = max(1, -(-bench.plan.sizes.rotated_bytes // num_bytes))
    units = matrix_bytes(cols, min(num_bytes, 1 << 24))
    data = bench.filled((count, num_bytes), units)
    return [Matrix("q4_0", rows, cols, data[i]) for i in range(count)]


def _product_seconds(
    bench: Bench, outs: F32, x: QuantizedRows, weights: list[Matrix], launches: int
) -> float:
    """Of one product."""

    def work() -> None:
        for i in range(launches):
            bench.ops.matmul(outs, x, weights[i % len(weights)])

    return bench.drawn_seconds(work) / launches


def gemv_rows(bench: Bench, tell: Tell) -> Iterator[Row]:
    for name, rows, cols in matrices_of(bench):
        weights = _copies(bench, rows, cols)
        for tokens in bench.plan.sizes.gemv_tokens:
            tell(f"{name} {rows} x {cols}, {tokens} tokens")
            launches = max(bench.plan.sizes.launches, len(weights))
            with bench.product(tokens, rows, cols) as (out, x):
                seconds = _product_seconds(bench, out, x, weights, min(launches, 200))
            num_bytes = packed_bytes("q4_0", rows, cols)
            yield {
                "matrix": name, "rows": rows, "cols": cols, "tokens": tokens, "unit": "GB/s",
                "ours": round(num_bytes / seconds / 1e9, 1), "us": round(seconds * 1e6, 2),
            }  # fmt: skip
        bench.device.release(weights[0].data)


def gemm_rows(bench: Bench, tell: Tell) -> Iterator[Row]:
    shapes = matrices_of(bench)
    tell("the same products by a library")
    beside = library_rates([(t, *s[1:]) for s in shapes for t in bench.plan.sizes.gemm_tokens])
    for name, rows, cols in shapes:
        weights = _copies(bench, rows, cols)
        for tokens in bench.plan.sizes.gemm_tokens:
            tell(f"{name} {rows} x {cols}, {tokens} tokens")
            with bench.product(tokens, rows, cols) as (out, x):
                seconds = _product_seconds(bench, out, x, weights, 4)
            tops = 2 * tokens * rows * cols / seconds / 1e12
            yield {
                "matrix": name, "rows": rows, "cols": cols, "tokens": tokens, "unit": "TOPS",
                "ours": round(tops, 2), **beside.get((tokens, rows, cols), {}),
            }  # fmt: skip
        bench.device.release(weights[0].data)


def attention_rows(bench: Bench, tell: Tell) -> Iterator[Row]:
    sizes = bench.plan.sizes
    like = sizes.like
    file = made_like(like, "shapes", 0)
    config = architecture_of(like.architecture).config(file.fields, like.vocab_size)
    driver = bench.device.driver
    peak = 2 * driver.multiprocessors * LANES.get(driver.sm, 128) * driver.clock_hz
    for context in sizes.prefills:
        tokens = min(sizes.step_tokens, context)
        tell(f"attention of {tokens} tokens behind {context - tokens}")
        seconds = _attention_seconds(bench, config, context, tokens)
        pairs = sum(range(context - tokens + 1, context + 1))  # of queries and keys
        flops = 4 * pairs * config.num_heads * config.head_dim
        yield {
            "context": context, "tokens": tokens, "unit": "TFLOP/s",
            "ours": round(flops / seconds / 1e12, 2), "of_peak": round(flops / seconds / peak, 3),
            "ms": round(seconds * 1000, 3),
        }  # fmt: skip


def _attention_seconds(bench: Bench, config: ModelConfig, context: int, tokens: int) -> float:
    device, blocks = bench.device, -(-context // BLOCK_TOKENS)
    shape = kv_shape(blocks, 1, config.num_kv_heads, config.head_dim)
    values = np.random.default_rng(0).standard_normal(1 << 16, np.float32).astype(np.float16)
    kv = KvArena(bench.filled(tuple(shape), values))
    q = bench.random(tokens, config.num_heads, config.head_dim)
    out = device.reserve(q.shape, np.float32)
    positions = np.arange(context - tokens, context, dtype=np.int32)
    step = Step(
        token_ids=positions,
        positions=positions,
        seq_index=np.zeros(tokens, np.int32),
        slot_mapping=positions.astype(np.int64),
        block_tables=np.arange(blocks, dtype=np.int32).reshape(1, -1),
        logit_rows=np.zeros(0, np.int32),
    )
    place = StepPlace(device, step_bytes(tokens, 1, blocks))
    sent = place.send(step, blocks)
    seconds = bench.drawn_seconds(
        lambda: bench.ops.attention(out, q, kv, 0, sent, config.attention_scale)
    )
    device.release(kv.blocks, q, out)
    return seconds
