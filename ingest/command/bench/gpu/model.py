"""The whole model on the GPU: decode by sessions, prefill by length, a session that moves, both
processors at once.

decode   tokens/s; beside it the share of the measured copy that the weights' bytes come to, and
         what a step takes beyond its graph (the gap: launching, fetching the verdict)
prefill  tokens/s of one prompt, in chunks
move     a session from the GPU to the CPU and back: bytes, milliseconds, the same digests
both     tokens/s of each processor alone, and of both at once
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from ingest.command.bench.gpu.bench import Bench
from ingest.command.bench.gpu.cpu_side import CpuSide
from ingest.command.bench.gpu.plan import Row, Tell
from ingest.command.bench.gpu.seat import Seat
from ingest.command.bench.gpu.steps import Layout, tokens_of
from kernels.ops import BLOCK_TOKENS
from workers.model.pack import Weights


@dataclass(frozen=True, slots=True)
class Sides:
    """Both processors with the same stand-in.   copy_gb_per_s: measured, or None"""

    bench: Bench
    gpu: Seat
    cpu: CpuSide
    weights: Weights
    copy_gb_per_s: float | None


def streamed_bytes(weights: Weights) -> int:
    """Of the matrices that a decode step reads whole: all but the embedding, of which rows."""
    entries = [e for e in weights.entries() if len(e.shape) == 2]
    return sum(e.num_bytes for e in entries if e.name != "token_embd.weight")


def blocks_for(num_tokens: int) -> int:
    return -(-num_tokens // BLOCK_TOKENS)


def decode_rows(sides: Sides, tell: Tell) -> Iterator[Row]:
    sizes, gpu, device = sides.bench.plan.sizes, sides.gpu, sides.bench.device
    layout = Layout(blocks_for(sizes.context + 4 * sizes.steps))
    floor = streamed_bytes(sides.weights)
    for sessions in sizes.sessions:
        tell(f"decode of {sessions} sessions")
        gpu.decode(layout, sessions, sizes.context, 3)  # plain, drawn, launched
        begin = time.perf_counter()
        gpu.decode(layout, sessions, sizes.context, sizes.steps)
        step = (time.perf_counter() - begin) / sizes.steps
        one = layout.decode([1] * sessions, sizes.context)
        graph = sides.bench.gpu_seconds(partial(gpu.forward, one), sizes.steps)
        device.wait()
        rate = floor / step / 1e9
        copy = sides.copy_gb_per_s
        yield {
            "sessions": sessions, "context": sizes.context, "unit": "tokens/s",
            "ours": round(sessions / step, 1), "step_ms": round(1000 * step, 3),
            "graph_ms": round(1000 * graph, 3), "gap_ms": round(1000 * (step - graph), 3),
            "gb_per_s": round(rate, 1), "of_copy": copy and round(rate / copy, 3),
        }  # fmt: skip


def prefill_rows(sides: Sides, tell: Tell) -> Iterator[Row]:
    sizes, gpu = sides.bench.plan.sizes, sides.gpu
    for length in sizes.prefills:
        tell(f"prefill of {length} tokens")
        token_ids = tokens_of(0, length, gpu.config.vocab_size)
        gpu.prefill(Layout(blocks_for(length)), token_ids[: sizes.step_tokens], sizes.step_tokens)
        begin = time.perf_counter()
        gpu.prefill(Layout(blocks_for(length)), token_ids, sizes.step_tokens)
        seconds = time.perf_counter() - begin
        yield {
            "context": length, "chunk": sizes.step_tokens, "unit": "tokens/s",
            "ours": round(length / seconds, 1), "ms": round(1000 * seconds, 1),
        }  # fmt: skip


def move_rows(sides: Sides, tell: Tell) -> Iterator[Row]:
    """The GPU alone goes on as far as all three turns; then the same with the CPU in between."""
    sizes, gpu, cpu = sides.bench.plan.sizes, sides.gpu, sides.cpu
    length, count = sizes.moved, sizes.carried_on
    blocks = blocks_for(length + 3 * count)
    here = Layout(blocks)
    tell(f"prefill of the session that moves, {length} tokens")
    first, _ = gpu.prefill(here, tokens_of(1, length, gpu.config.vocab_size), sizes.step_tokens)
    spare = Layout(blocks, first_block=blocks, first_slot=1)
    _copy_session(sides, blocks)
    expected = gpu.carry_on(spare, first, length, 3 * count)
    tell("the session moves")
    found = gpu.carry_on(here, first, length, count)
    full = (length + count) // BLOCK_TOKENS
    begin = time.perf_counter()
    for block_id in range(full):
        cpu.kv.blocks[block_id] = gpu.arrays.read(gpu.kv.blocks[block_id])
    behind = time.perf_counter() - begin
    out_bytes, out_seconds = _carry(sides, full, length + count, to_cpu=True)
    found += cpu.carry_on(here, found[-1][0], length + count, count)
    back_bytes, back_seconds = _carry(sides, full, length + 2 * count, to_cpu=False)
    found += gpu.carry_on(here, found[-1][0], length + 2 * count, count)
    block = gpu.kv.blocks[0].nbytes
    yield {
        "context": length, "unit": "ms", "ours": round(1000 * out_seconds, 2),
        "back_ms": round(1000 * back_seconds, 2), "moved_bytes": out_bytes,
        "back_bytes": back_bytes,
        "written_behind_bytes": full * block, "behind_ms": round(1000 * behind, 2),
        "behind_gb_per_s": round(full * block / behind / 1e9, 2) if full else None,
        "tokens": 3 * count, "same_digests": found == expected,
    }  # fmt: skip


def _copy_session(sides: Sides, blocks: int) -> None:
    """Blocks and state of the first sequence, once more behind them: for the one that stays."""
    gpu = sides.gpu
    for block_id in range(blocks):
        gpu.arrays.copy(gpu.kv.blocks[blocks + block_id], gpu.kv.blocks[block_id])
    gpu.arrays.copy(gpu.state.conv[1], gpu.state.conv[0])
    gpu.arrays.copy(gpu.state.delta[1], gpu.state.delta[0])


def _carry(sides: Sides, full: int, length: int, *, to_cpu: bool) -> tuple[int, float]:
    """What has not been written behind: positions of the tail, and the state. Bytes, seconds."""
    gpu, cpu = sides.gpu, sides.cpu
    pairs = [(gpu.state.conv[0], cpu.state.conv[0]), (gpu.state.delta[0], cpu.state.delta[0])]
    for block_id in range(full, blocks_for(length)):
        tail = slice(0, min(BLOCK_TOKENS, length - block_id * BLOCK_TOKENS))
        blocks = (gpu.kv.blocks[block_id], cpu.kv.blocks[block_id])
        pairs.append((blocks[0][..., tail, :], blocks[1][..., tail, :]))
    begin = time.perf_counter()
    for there, here in pairs:
        if to_cpu:
            here[...] = gpu.arrays.read(there)
        else:
            gpu.arrays.write(there, here)
    sides.bench.device.wait()
    return sum(here.nbytes for _, here in pairs), time.perf_counter() - begin


def both_rows(sides: Sides, tell: Tell) -> Iterator[Row]:
    sizes, gpu, cpu = sides.bench.plan.sizes, sides.gpu, sides.cpu
    layout = Layout(blocks_for(sizes.context + 4 * sizes.steps))
    many, few = max(sizes.sessions), sizes.cpu_sessions
    asked = (layout, few, sizes.context, sizes.cpu_steps)
    tell("the CPU alone")
    cpu.kv.blocks[: few * layout.blocks] = np.float16(0.5)
    cpu.ask("decode", layout, few, sizes.context, 1)
    cpu.answer()
    cpu.ask("decode", *asked)
    cpu_alone = few * sizes.cpu_steps / cpu.answer()[0]
    tell("the GPU alone")
    gpu.decode(layout, many, sizes.context, 3)
    begin = time.perf_counter()
    gpu.decode(layout, many, sizes.context, sizes.steps)
    gpu_alone = many * sizes.steps / (time.perf_counter() - begin)
    tell("both at once")
    cpu.ask("decode", *asked)
    begin, steps = time.perf_counter(), 0
    while steps == 0 or not cpu.is_done():
        gpu.decode(layout, many, sizes.context + steps % sizes.steps, 1)
        steps += 1
    gpu_beside = many * steps / (time.perf_counter() - begin)
    cpu_beside = few * sizes.cpu_steps / cpu.answer()[0]
    yield {
        "sessions": many, "cpu_sessions": few, "context": sizes.context, "unit": "tokens/s",
        "ours": round(gpu_beside + cpu_beside, 1), "gpu_alone": round(gpu_alone, 1),
        "cpu_alone": round(cpu_alone, 2), "gpu_beside": round(gpu_beside, 1),
        "cpu_beside": round(cpu_beside, 2),
    }  # fmt: skip
