"""What the host refuses: a wrong shape, type or index is an assertion before a kernel runs."""

import dataclasses

import numpy as np
import pytest

from kernels.cpu.host import CpuOps
from kernels.cuda.emulate.host import emulated_ops
from kernels.ops import Matrix, StateArena, quantized_rows
from kernels.tables import rope_table
from tests.kernels.cases import Conversation, quantized, random_matrix, random_rows
from tests.kernels.state_cases import Recurrence

SIDES = {"cpu": CpuOps(1), "gpu": emulated_ops()}
X = random_rows(3, 64)
Q = quantized(SIDES["cpu"], X)
W = random_matrix("q4_0", 20, 64)
TABLE = rope_table(1e4, 8, 16, None, adjacent=True)
TALK = Conversation([20], 2, 1, 8)
KV = TALK.stored(SIDES["cpu"])


def f32(*shape):
    return np.zeros(shape, np.float32)


def i32(*values):
    return np.array(values, np.int32)


LINEAR = Recurrence([4, 3], 4, 2, 8, 8)
PARTS = [(0, 0, 4), (1, 0, 3)]


def convolve(ops, out=None, x=None, weight=LINEAR.weight, layer=0, arena=None, **changes):
    step = dataclasses.replace(LINEAR.step(PARTS), **changes)
    x = LINEAR.x if x is None else x
    out = np.empty_like(x) if out is None else out
    ops.conv1d(out, x, arena or LINEAR.arena(), layer, weight, step)


def recur(ops, layer=0, arena=None, changed_step=None, **changes):
    arrays = dict(out=np.empty_like(LINEAR.v), q=LINEAR.q, k=LINEAR.k, v=LINEAR.v)
    arrays |= dict(decay=LINEAR.decay, beta=LINEAR.beta)
    step = dataclasses.replace(LINEAR.step(PARTS), **(changed_step or {}))
    ops.gated_delta_rule(
        *(arrays | changes).values(), state=arena or LINEAR.arena(), layer=layer, step=step
    )


def attend(ops, **changes):
    step = dataclasses.replace(TALK.step(np.arange(20)), **changes)
    ops.attention(f32(20, 2, 8), TALK.q, KV, 0, step, 1.0)


def project(ops, outs=None, x=None, weights=None, biases=(None, None)):
    outs = (f32(3, 20), f32(3, 20)) if outs is None else outs
    ops.project(outs, x or Q, weights or (W, W), biases)


def gate(ops, out=None, gate=None, weights=None, activation="silu"):
    wide = random_matrix("q4_0", 32, 64)
    gate = f32(3, 32) if gate is None else gate
    out = out or quantized_rows(3, 32)
    ops.gated_project(out, gate, f32(3, 32), Q, weights or (wide, wide), (None, None), activation)


def add_norm(ops, hidden=None, branch=None, normed=None, weight=None, quantized=None):
    hidden = f32(3, 64) if hidden is None else hidden
    normed = f32(3, 64) if normed is None else normed
    weight = f32(64) if weight is None else weight
    ops.add_norm(normed, quantized, hidden, branch, weight, 1e-5)


def attend_all(
    ops, out=None, q=None, k=None, v=None, table=None, quantized=None, layer=0, **changes
):
    step = dataclasses.replace(TALK.step(np.arange(12)), **changes)
    heads, keys = f32(12, 2, 8), f32(12, 1, 8)
    ops.attend(
        heads if out is None else out, quantized, f32(12, 2, 8) if q is None else q,
        keys if k is None else k, f32(12, 1, 8) if v is None else v,
        table or TABLE, KV, layer, step, 1.0,
    )  # fmt: skip


REFUSED = {
    "a product into too few rows": lambda o: project(o, outs=(f32(3, 20), f32(3, 19))),
    "a product of other tokens": lambda o: project(o, outs=(f32(3, 20), f32(2, 20))),
    "two products into one array": lambda o: project(o, outs=(SHARED[:60].reshape(3, 20),) * 2),
    "a bias of another width": lambda o: project(o, biases=(None, f32(19))),
    "a bias too few": lambda o: project(o, biases=(None,)),
    "no products": lambda o: project(o, (), Q, (W,), ()),
    "nine products": lambda o: project(
        o, tuple(f32(3, 20) for _ in range(9)), Q, (W,) * 9, (None,) * 9
    ),
    "float weights among quantised": lambda o: project(
        o, weights=(W, random_matrix("f32", 20, 64))
    ),
    "weights of other columns": lambda o: project(o, weights=(W, random_matrix("q4_0", 20, 32))),
    "gate and up of unequal width": lambda o: gate(o, weights=(W, random_matrix("q4_0", 32, 64))),
    "gate into other columns": lambda o: gate(o, out=quantized_rows(3, 64)),
    "gate without a known activation": lambda o: gate(o, activation="relu"),
    "branch of another shape": lambda o: add_norm(o, branch=f32(3, 63)),
    "branch over the norm": lambda o: add_norm(o, branch=LONG[:3], normed=LONG[1:4]),
    "norm over hidden before the sum": lambda o: add_norm(o, LONG[:3], f32(3, 64), LONG[:3]),
    "norm weight of another width": lambda o: add_norm(o, weight=f32(63)),
    "norm into too few quants": lambda o: add_norm(o, quantized=quantized_rows(3, 32)),
    "RoPE table too short": lambda o: attend_all(o, positions=np.arange(8, 20, dtype=np.int32)),
    "RoPE table wider than a head": lambda o: attend_all(
        o, table=rope_table(1e4, 16, 20, None, adjacent=True)
    ),
    "values of other heads than keys": lambda o: attend_all(o, v=f32(12, 2, 8)),
    "queries over keys": lambda o: attend_all(
        o, q=SHARED[:192].reshape(12, 2, 8), k=SHARED[96:192].reshape(12, 1, 8)
    ),
    "mixed over queries": lambda o: attend_all(
        o, out=SHARED[:192].reshape(12, 2, 8), q=SHARED[:192].reshape(12, 2, 8)
    ),
    "slots past the arena": lambda o: attend_all(o, slot_mapping=np.full(12, 10**6)),
    "mixed into other quants": lambda o: attend_all(o, quantized=quantized_rows(12, 32)),
    "a layer the arena lacks": lambda o: attend_all(o, layer=2),
    "out of another shape": lambda o: o.matmul(f32(3, 21), Q, W),
    "out of another type": lambda o: o.matmul(np.zeros((3, 20)), Q, W),
    "out not contiguous": lambda o: o.matmul(f32(3, 40)[:, ::2], Q, W),
    "out read-only": lambda o: o.matmul(np.broadcast_to(np.float32(0), (3, 20)), Q, W),
    "columns differ": lambda o: o.matmul(f32(3, 20), quantized_rows(3, 32), W),
    "too few packed bytes": lambda o: o.matmul(f32(3, 20), Q, Matrix("q4_0", 20, 64, W.data[:-1])),
    "packed bytes not contiguous": lambda o: o.matmul(
        f32(3, 20), Q, Matrix("q4_0", 20, 64, np.repeat(W.data, 2)[::2])
    ),
    "scales of another type": lambda o: o.matmul(
        f32(3, 20), dataclasses.replace(Q, scales=Q.scales.astype(np.float64)), W
    ),
    "too few scales": lambda o: o.matmul(f32(3, 20), dataclasses.replace(Q, scales=f32(3, 1)), W),
    "f32 matrix as quantised": lambda o: o.matmul(f32(3, 20), Q, random_matrix("f32", 20, 64)),
    "quantised matrix as f32": lambda o: o.matmul_f32(f32(3, 20), X, W),
    "33 columns": lambda o: o.quantize_rows(quantized_rows(1, 32), f32(1, 33)),
    "room for other rows": lambda o: o.quantize_rows(quantized_rows(2, 64), X),
    "weight of another width": lambda o: o.rms_norm(f32(3, 64), X, f32(63), 1e-5),
    "overlapping norm": lambda o: o.rms_norm(LONG[1:4], LONG[0:3], f32(64), 1e-5),
    "token id past the vocabulary": lambda o: o.embed(f32(1, 64), W, i32(20)),
    "negative token id": lambda o: o.embed(f32(1, 64), W, i32(-1)),
    "token ids of another type": lambda o: o.embed(f32(1, 64), W, np.array([1])),
    "rows into too few": lambda o: o.take_rows(f32(1, 64), f32(3, 64), i32(0, 2)),
    "rows of other columns": lambda o: o.take_rows(f32(2, 32), f32(3, 64), i32(0, 2)),
    "position past the table": lambda o: o.rope(f32(1, 1, 8), i32(16), TABLE),
    "table wider than the head": lambda o: o.rope(f32(1, 1, 4), i32(0), TABLE),
    "bias of another width": lambda o: o.add(f32(3, 64), f32(63)),
    "rows of another count": lambda o: o.add(f32(3, 64), f32(2, 64)),
    "gate of another shape": lambda o: o.silu_mul(f32(3, 64), f32(3, 63), f32(3, 64)),
    "exp of another shape": lambda o: o.exp(f32(3), f32(4)),
    "KV slot past the arena": lambda o: o.store_kv(
        KV, 0, f32(1, 1, 8), f32(1, 1, 8), np.array([KV.blocks.shape[0] * 256])
    ),
    "negative slot": lambda o: o.store_kv(KV, 0, f32(1, 1, 8), f32(1, 1, 8), np.array([-1])),
    "no such layer": lambda o: o.store_kv(KV, 2, f32(1, 1, 8), f32(1, 1, 8), np.array([0])),
    "keys of other heads": lambda o: o.store_kv(KV, 0, f32(1, 2, 8), f32(1, 2, 8), np.array([0])),
    "block past the arena": lambda o: attend(o, block_tables=i32(99).reshape(1, 1)),
    "position past the block table": lambda o: attend(
        o, positions=np.arange(240, 260, dtype=np.int32)
    ),
    "sequence without a table": lambda o: attend(o, seq_index=np.ones(20, np.int32)),
    "positions that fall": lambda o: attend(o, positions=np.arange(20, 0, -1, dtype=np.int32)),
    "query over its output": lambda o: o.attention(
        TALK.q, TALK.q, KV, 0, TALK.step(np.arange(20)), 1.0
    ),
    "negative window": lambda o: o.attention(
        f32(20, 2, 8), TALK.q, KV, 0, TALK.step(np.arange(20)), 1.0, -1
    ),
    "norm of rows that overlap": lambda o: o.rms_norm(
        f32(3, 64), np.lib.stride_tricks.as_strided(X, (3, 64), (4, 4)), f32(64), 1e-5
    ),
    "norm of every second column": lambda o: o.rms_norm(
        f32(3, 32), random_rows(3, 64)[:, ::2], f32(32), 1e-5
    ),
    "norm over the wider rows it reads": lambda o: o.l2_norm(
        LONG[0].reshape(2, 1, 32), LONG[:2].reshape(2, 2, 32)[:, :1], 1e-6, 1.0
    ),
    "heads of another count": lambda o: o.l2_norm(f32(3, 2, 32), f32(3, 4, 32), 1e-6, 1.0),
    "up of another shape": lambda o: o.gelu_mul(f32(3, 64), f32(3, 64), f32(3, 63)),
    "sigmoid of wider rows": lambda o: o.sigmoid_mul(f32(3, 64), f32(3, 65), f32(3, 64)),
    "scale of another type": lambda o: o.scale(np.zeros(3), 2.0),
    "gates over each other": lambda o: o.delta_gates(
        GATES, GATES, f32(2, 4), f32(2, 4), f32(4), f32(4)
    ),
    "gates of another count of heads": lambda o: o.delta_gates(
        f32(2, 4), f32(2, 4), f32(2, 4), f32(2, 4), f32(3), f32(4)
    ),
    "convolution over its input": lambda o: convolve(o, out=LINEAR.x),
    "convolution of other channels": lambda o: convolve(o, x=f32(7, 64)),
    "weights of other taps": lambda o: convolve(o, weight=f32(72, 3)),
    "convolution in no such layer": lambda o: convolve(o, layer=3),
    "states that are not contiguous": lambda o: convolve(
        o, arena=StateArena(np.repeat(LINEAR.arena().conv, 2, axis=0)[::2], LINEAR.arena().delta)
    ),
    "slot past the arena": lambda o: convolve(o, state_slots=i32(0, 4)),
    "negative state slot": lambda o: convolve(o, state_slots=i32(0, -1)),
    "no state slots": lambda o: convolve(o, state_slots=i32()),
    "one slot for two sequences": lambda o: convolve(o, state_slots=i32(1, 1)),
    "a sequence in two places": lambda o: convolve(o, seq_index=i32(0, 0, 1, 1, 0, 0, 0)),
    "a position left out": lambda o: convolve(o, positions=i32(0, 1, 2, 4, 0, 1, 2)),
    "a negative position": lambda o: convolve(o, positions=i32(-1, 0, 1, 2, 0, 1, 2)),
    "rule in no such layer": lambda o: recur(o, layer=-1),
    "rule over its input": lambda o: recur(o, out=LINEAR.v),
    "values of other heads": lambda o: recur(o, v=f32(7, 3, 8)),
    "keys of another width": lambda o: recur(o, k=f32(7, 2, 16)),
    "key heads that do not divide": lambda o: recur(o, q=f32(7, 3, 8), k=f32(7, 3, 8)),
    "decay of another count": lambda o: recur(o, decay=f32(7, 3)),
    "beta of another type": lambda o: recur(o, beta=np.zeros((7, 4))),
    "state of another shape": lambda o: recur(o, arena=Recurrence([4, 3], 4, 2, 8, 16).arena()),
    "rule with one slot for two": lambda o: recur(o, changed_step={"state_slots": i32(2, 2)}),
    "sums of another count": lambda o: o.logits_sum(np.zeros(2, np.uint64), f32(3, 64)),
    "argmax of another type": lambda o: o.logits_argmax(np.zeros(3, np.int64), f32(3, 64)),
}
LONG, GATES, SHARED = f32(4, 64), f32(2, 4), f32(192)


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("what", REFUSED)
def test_is_refused(what, side):
    with pytest.raises(AssertionError):
        REFUSED[what](SIDES[side])


def test_no_threads_are_refused():
    with pytest.raises(AssertionError):
        CpuOps(0)


NO_TOKENS = {
    "matmul": lambda o: o.matmul(f32(0, 20), quantized_rows(0, 64), W),
    "quantize_rows": lambda o: o.quantize_rows(quantized_rows(0, 64), f32(0, 64)),
    "embed": lambda o: o.embed(f32(0, 64), W, i32()),
    "project": lambda o: o.project((f32(0, 20),), quantized_rows(0, 64), (W,), (None,)),
    "add_norm": lambda o: o.add_norm(f32(0, 64), None, f32(0, 64), None, f32(64), 1e-5),
    "rms_norm": lambda o: o.rms_norm(f32(0, 64), f32(0, 64), f32(64), 1e-5),
    "rope": lambda o: o.rope(f32(0, 2, 8), i32(), TABLE),
    "store_kv": lambda o: o.store_kv(KV, 0, f32(0, 1, 8), f32(0, 1, 8), np.zeros(0, np.int64)),
    "attention": lambda o: TALK.attend(o, KV, np.zeros(0, np.int64)),
    "silu_mul": lambda o: o.silu_mul(f32(0, 8), f32(0, 8), f32(0, 8)),
    "logits_argmax": lambda o: o.logits_argmax(i32(), f32(0, 8)),
}


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("call", NO_TOKENS.values(), ids=NO_TOKENS)
def test_no_tokens_are_refused(call, side):
    with pytest.raises(AssertionError, match="there are no tokens"):
        call(SIDES[side])
