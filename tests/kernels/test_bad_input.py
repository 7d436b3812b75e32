"""What the host refuses: a wrong shape, type or index is an assertion before a kernel runs."""

import dataclasses

import numpy as np
import pytest

from kernels.cpu.host import CpuOps
from kernels.ops import Matrix, StateArena, quantized_rows
from kernels.tables import rope_table
from tests.kernels.cases import Conversation, quantized, random_matrix, random_rows
from tests.kernels.state_cases import Recurrence

OPS = CpuOps(1)
X = random_rows(3, 64)
Q = quantized(OPS, X)
W = random_matrix("q4_0", 20, 64)
TABLE = rope_table(1e4, 8, 16, None, adjacent=True)
TALK = Conversation([20], 2, 1, 8)
KV = TALK.stored(OPS)


def f32(*shape):
    return np.zeros(shape, np.float32)


def i32(*values):
    return np.array(values, np.int32)


LINEAR = Recurrence([4, 3], 4, 2, 8, 8)
PARTS = [(0, 0, 4), (1, 0, 3)]


def convolve(out=None, x=None, weight=LINEAR.weight, layer=0, arena=None, **changes):
    step = dataclasses.replace(LINEAR.step(PARTS), **changes)
    x = LINEAR.x if x is None else x
    out = np.empty_like(x) if out is None else out
    OPS.conv1d(out, x, arena or LINEAR.arena(), layer, weight, step)


def recur(layer=0, arena=None, changed_step=None, **changes):
    arrays = dict(out=np.empty_like(LINEAR.v), q=LINEAR.q, k=LINEAR.k, v=LINEAR.v)
    arrays |= dict(decay=LINEAR.decay, beta=LINEAR.beta)
    step = dataclasses.replace(LINEAR.step(PARTS), **(changed_step or {}))
    OPS.gated_delta_rule(
        *(arrays | changes).values(), state=arena or LINEAR.arena(), layer=layer, step=step
    )


def attend(**changes):
    step = dataclasses.replace(TALK.step(np.arange(20)), **changes)
    OPS.attention(f32(20, 2, 8), TALK.q, KV, 0, step, 1.0)


def project(outs=None, x=None, weights=None, biases=(None, None)):
    outs = (f32(3, 20), f32(3, 20)) if outs is None else outs
    OPS.project(outs, x or Q, weights or (W, W), biases)


def gate(out=None, gate=None, weights=None, activation="silu"):
    wide = random_matrix("q4_0", 32, 64)
    gate = f32(3, 32) if gate is None else gate
    out = out or quantized_rows(3, 32)
    OPS.gated_project(out, gate, f32(3, 32), Q, weights or (wide, wide), (None, None), activation)


def add_norm(hidden=None, branch=None, normed=None, weight=None, quantized=None):
    hidden = f32(3, 64) if hidden is None else hidden
    normed = f32(3, 64) if normed is None else normed
    weight = f32(64) if weight is None else weight
    OPS.add_norm(normed, quantized, hidden, branch, weight, 1e-5)


def attend_all(out=None, q=None, k=None, v=None, table=None, quantized=None, layer=0, **changes):
    step = dataclasses.replace(TALK.step(np.arange(12)), **changes)
    heads, keys = f32(12, 2, 8), f32(12, 1, 8)
    OPS.attend(
        heads if out is None else out, quantized, f32(12, 2, 8) if q is None else q,
        keys if k is None else k, f32(12, 1, 8) if v is None else v,
        table or TABLE, KV, layer, step, 1.0,
    )  # fmt: skip


REFUSED = {
    "a product into too few rows": lambda: project(outs=(f32(3, 20), f32(3, 19))),
    "a product of other tokens": lambda: project(outs=(f32(3, 20), f32(2, 20))),
    "two products into one array": lambda: project(outs=(SHARED[:60].reshape(3, 20),) * 2),
    "a bias of another width": lambda: project(biases=(None, f32(19))),
    "a bias too few": lambda: project(biases=(None,)),
    "no products": lambda: project((), Q, (W,), ()),
    "nine products": lambda: project(tuple(f32(3, 20) for _ in range(9)), Q, (W,) * 9, (None,) * 9),
    "float weights among quantised": lambda: project(weights=(W, random_matrix("f32", 20, 64))),
    "weights of other columns": lambda: project(weights=(W, random_matrix("q4_0", 20, 32))),
    "gate and up of unequal width": lambda: gate(weights=(W, random_matrix("q4_0", 32, 64))),
    "gate into other columns": lambda: gate(out=quantized_rows(3, 64)),
    "gate without a known activation": lambda: gate(activation="relu"),
    "branch of another shape": lambda: add_norm(branch=f32(3, 63)),
    "branch over the norm": lambda: add_norm(branch=LONG[:3], normed=LONG[1:4]),
    "norm over hidden before the sum": lambda: add_norm(LONG[:3], f32(3, 64), LONG[:3]),
    "norm weight of another width": lambda: add_norm(weight=f32(63)),
    "norm into too few quants": lambda: add_norm(quantized=quantized_rows(3, 32)),
    "RoPE table too short": lambda: attend_all(positions=np.arange(8, 20, dtype=np.int32)),
    "RoPE table wider than a head": lambda: attend_all(
        table=rope_table(1e4, 16, 20, None, adjacent=True)
    ),
    "values of other heads than keys": lambda: attend_all(v=f32(12, 2, 8)),
    "queries over keys": lambda: attend_all(
        q=SHARED[:192].reshape(12, 2, 8), k=SHARED[96:192].reshape(12, 1, 8)
    ),
    "mixed over queries": lambda: attend_all(
        out=SHARED[:192].reshape(12, 2, 8), q=SHARED[:192].reshape(12, 2, 8)
    ),
    "slots past the arena": lambda: attend_all(slot_mapping=np.full(12, 10**6)),
    "mixed into other quants": lambda: attend_all(quantized=quantized_rows(12, 32)),
    "a layer the arena lacks": lambda: attend_all(layer=2),
    "out of another shape": lambda: OPS.matmul(f32(3, 21), Q, W),
    "out of another type": lambda: OPS.matmul(np.zeros((3, 20)), Q, W),
    "out not contiguous": lambda: OPS.matmul(f32(3, 40)[:, ::2], Q, W),
    "out read-only": lambda: OPS.matmul(np.broadcast_to(np.float32(0), (3, 20)), Q, W),
    "columns differ": lambda: OPS.matmul(f32(3, 20), quantized_rows(3, 32), W),
    "too few packed bytes": lambda: OPS.matmul(f32(3, 20), Q, Matrix("q4_0", 20, 64, W.data[:-1])),
    "packed bytes not contiguous": lambda: OPS.matmul(
        f32(3, 20), Q, Matrix("q4_0", 20, 64, np.repeat(W.data, 2)[::2])
    ),
    "scales of another type": lambda: OPS.matmul(
        f32(3, 20), dataclasses.replace(Q, scales=Q.scales.astype(np.float64)), W
    ),
    "too few scales": lambda: OPS.matmul(f32(3, 20), dataclasses.replace(Q, scales=f32(3, 1)), W),
    "f32 matrix as quantised": lambda: OPS.matmul(f32(3, 20), Q, random_matrix("f32", 20, 64)),
    "quantised matrix as f32": lambda: OPS.matmul_f32(f32(3, 20), X, W),
    "33 columns": lambda: OPS.quantize_rows(quantized_rows(1, 32), f32(1, 33)),
    "room for other rows": lambda: OPS.quantize_rows(quantized_rows(2, 64), X),
    "weight of another width": lambda: OPS.rms_norm(f32(3, 64), X, f32(63), 1e-5),
    "overlapping norm": lambda: OPS.rms_norm(LONG[1:4], LONG[0:3], f32(64), 1e-5),
    "token id past the vocabulary": lambda: OPS.embed(f32(1, 64), W, i32(20)),
    "negative token id": lambda: OPS.embed(f32(1, 64), W, i32(-1)),
    "token ids of another type": lambda: OPS.embed(f32(1, 64), W, np.array([1])),
    "position past the table": lambda: OPS.rope(f32(1, 1, 8), i32(16), TABLE),
    "table wider than the head": lambda: OPS.rope(f32(1, 1, 4), i32(0), TABLE),
    "bias of another width": lambda: OPS.add(f32(3, 64), f32(63)),
    "rows of another count": lambda: OPS.add(f32(3, 64), f32(2, 64)),
    "gate of another shape": lambda: OPS.silu_mul(f32(3, 64), f32(3, 63), f32(3, 64)),
    "exp of another shape": lambda: OPS.exp(f32(3), f32(4)),
    "KV slot past the arena": lambda: OPS.store_kv(
        KV, 0, f32(1, 1, 8), f32(1, 1, 8), np.array([KV.blocks.shape[0] * 256])
    ),
    "negative slot": lambda: OPS.store_kv(KV, 0, f32(1, 1, 8), f32(1, 1, 8), np.array([-1])),
    "no such layer": lambda: OPS.store_kv(KV, 2, f32(1, 1, 8), f32(1, 1, 8), np.array([0])),
    "keys of other heads": lambda: OPS.store_kv(KV, 0, f32(1, 2, 8), f32(1, 2, 8), np.array([0])),
    "block past the arena": lambda: attend(block_tables=i32(99).reshape(1, 1)),
    "position past the block table": lambda: attend(positions=np.arange(240, 260, dtype=np.int32)),
    "sequence without a table": lambda: attend(seq_index=np.ones(20, np.int32)),
    "positions that fall": lambda: attend(positions=np.arange(20, 0, -1, dtype=np.int32)),
    "query over its output": lambda: OPS.attention(
        TALK.q, TALK.q, KV, 0, TALK.step(np.arange(20)), 1.0
    ),
    "negative window": lambda: OPS.attention(
        f32(20, 2, 8), TALK.q, KV, 0, TALK.step(np.arange(20)), 1.0, -1
    ),
    "norm of rows that overlap": lambda: OPS.rms_norm(
        f32(3, 64), np.lib.stride_tricks.as_strided(X, (3, 64), (4, 4)), f32(64), 1e-5
    ),
    "norm of every second column": lambda: OPS.rms_norm(
        f32(3, 32), random_rows(3, 64)[:, ::2], f32(32), 1e-5
    ),
    "norm over the wider rows it reads": lambda: OPS.l2_norm(
        LONG[0].reshape(2, 1, 32), LONG[:2].reshape(2, 2, 32)[:, :1], 1e-6, 1.0
    ),
    "heads of another count": lambda: OPS.l2_norm(f32(3, 2, 32), f32(3, 4, 32), 1e-6, 1.0),
    "up of another shape": lambda: OPS.gelu_mul(f32(3, 64), f32(3, 64), f32(3, 63)),
    "sigmoid of wider rows": lambda: OPS.sigmoid_mul(f32(3, 64), f32(3, 65), f32(3, 64)),
    "scale of another type": lambda: OPS.scale(np.zeros(3), 2.0),
    "gates over each other": lambda: OPS.delta_gates(
        GATES, GATES, f32(2, 4), f32(2, 4), f32(4), f32(4)
    ),
    "gates of another count of heads": lambda: OPS.delta_gates(
        f32(2, 4), f32(2, 4), f32(2, 4), f32(2, 4), f32(3), f32(4)
    ),
    "convolution over its input": lambda: convolve(out=LINEAR.x),
    "convolution of other channels": lambda: convolve(x=f32(7, 64)),
    "weights of other taps": lambda: convolve(weight=f32(72, 3)),
    "convolution in no such layer": lambda: convolve(layer=3),
    "states that are not contiguous": lambda: convolve(
        arena=StateArena(np.repeat(LINEAR.arena().conv, 2, axis=0)[::2], LINEAR.arena().delta)
    ),
    "slot past the arena": lambda: convolve(state_slots=i32(0, 4)),
    "negative state slot": lambda: convolve(state_slots=i32(0, -1)),
    "no state slots": lambda: convolve(state_slots=i32()),
    "one slot for two sequences": lambda: convolve(state_slots=i32(1, 1)),
    "a sequence in two places": lambda: convolve(seq_index=i32(0, 0, 1, 1, 0, 0, 0)),
    "a position left out": lambda: convolve(positions=i32(0, 1, 2, 4, 0, 1, 2)),
    "a negative position": lambda: convolve(positions=i32(-1, 0, 1, 2, 0, 1, 2)),
    "rule in no such layer": lambda: recur(layer=-1),
    "rule over its input": lambda: recur(out=LINEAR.v),
    "values of other heads": lambda: recur(v=f32(7, 3, 8)),
    "keys of another width": lambda: recur(k=f32(7, 2, 16)),
    "key heads that do not divide": lambda: recur(q=f32(7, 3, 8), k=f32(7, 3, 8)),
    "decay of another count": lambda: recur(decay=f32(7, 3)),
    "beta of another type": lambda: recur(beta=np.zeros((7, 4))),
    "state of another shape": lambda: recur(arena=Recurrence([4, 3], 4, 2, 8, 16).arena()),
    "rule with one slot for two": lambda: recur(changed_step={"state_slots": i32(2, 2)}),
    "sums of another count": lambda: OPS.logits_sum(np.zeros(2, np.uint64), f32(3, 64)),
    "argmax of another type": lambda: OPS.logits_argmax(np.zeros(3, np.int64), f32(3, 64)),
    "no threads": lambda: CpuOps(0),
}
LONG, GATES, SHARED = f32(4, 64), f32(2, 4), f32(192)


@pytest.mark.parametrize("what", REFUSED)
def test_is_refused(what):
    with pytest.raises(AssertionError):
        REFUSED[what]()


NO_TOKENS = {
    "matmul": lambda: OPS.matmul(f32(0, 20), quantized_rows(0, 64), W),
    "quantize_rows": lambda: OPS.quantize_rows(quantized_rows(0, 64), f32(0, 64)),
    "embed": lambda: OPS.embed(f32(0, 64), W, i32()),
    "project": lambda: OPS.project((f32(0, 20),), quantized_rows(0, 64), (W,), (None,)),
    "add_norm": lambda: OPS.add_norm(f32(0, 64), None, f32(0, 64), None, f32(64), 1e-5),
    "rms_norm": lambda: OPS.rms_norm(f32(0, 64), f32(0, 64), f32(64), 1e-5),
    "rope": lambda: OPS.rope(f32(0, 2, 8), i32(), TABLE),
    "store_kv": lambda: OPS.store_kv(KV, 0, f32(0, 1, 8), f32(0, 1, 8), np.zeros(0, np.int64)),
    "attention": lambda: TALK.attend(OPS, KV, np.zeros(0, np.int64)),
    "silu_mul": lambda: OPS.silu_mul(f32(0, 8), f32(0, 8), f32(0, 8)),
    "logits_argmax": lambda: OPS.logits_argmax(i32(), f32(0, 8)),
}


@pytest.mark.parametrize("call", NO_TOKENS.values(), ids=NO_TOKENS)
def test_no_tokens_are_refused(call):
    with pytest.raises(AssertionError, match="there are no tokens"):
        call()
