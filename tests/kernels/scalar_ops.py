"""The plain scalar model of ARITHMETIC.md behind the names of kernels.ops.

Slow and simple; what it gives is the law. It reads weights as GGUF blocks, so a mistake in the
packed layout shows too.
"""

import ctypes
import subprocess
from pathlib import Path

import numpy as np

from kernels.layout import unpack_matrix
from kernels.ops import BLOCK_TOKENS, KvArena, Matrix, QuantizedRows, RopeTable, StateArena, Step
from kernels.reference import ReferenceOps

SOURCE = Path(__file__).parent / "scalar" / "model.c"
KINDS = {"q4_0": 40, "q4_1": 41, "q8_0": 80}


def compile_model(folder: Path) -> Path:
    """The model as a shared library in folder."""
    library = folder / "model.so"
    flags = ["-O1", "-std=gnu11", "-ffp-contract=off", "-mfma", "-shared", "-fPIC"]
    subprocess.run(["gcc", *flags, str(SOURCE), "-o", str(library), "-lm"], check=True)
    return library


def pointer(array: np.ndarray) -> ctypes.c_void_p:
    assert array.flags.c_contiguous
    return ctypes.c_void_p(array.ctypes.data)


def long(value: int) -> ctypes.c_long:
    return ctypes.c_long(int(value))


class ScalarOps:
    """kernels.ops.Ops, one number after the other; those made of others are as the judge's."""

    project = ReferenceOps.project
    gated_project = ReferenceOps.gated_project
    add_norm = ReferenceOps.add_norm
    attend = ReferenceOps.attend

    name = "scalar"

    def __init__(self, library: Path) -> None:
        self.c = ctypes.CDLL(str(library))
        self.c.model_logits_sum.restype = ctypes.c_uint64
        self.c.model_logits_argmax.restype = ctypes.c_int32

    def embed(self, out, table: Matrix, token_ids) -> None:
        raw = np.ascontiguousarray(unpack_matrix(table.kind, table.data, table.rows, table.cols))
        if table.kind == "f32":
            out[...] = raw[token_ids]
            return
        sizes = long(token_ids.size), long(table.cols)
        kind = KINDS[table.kind]
        self.c.model_embed(kind, pointer(out), pointer(raw), pointer(token_ids), *sizes)

    def take_rows(self, out, x, rows) -> None:
        out[...] = x[rows]

    def quantize_rows(self, out: QuantizedRows, x) -> None:
        outs = pointer(out.values), pointer(out.scales), pointer(out.sums)
        self.c.model_quantize_rows(*outs, pointer(x), long(x.size // 32))

    def matmul(self, out, x: QuantizedRows, w: Matrix) -> None:
        raw = np.ascontiguousarray(unpack_matrix(w.kind, w.data, w.rows, w.cols))
        ins = pointer(x.values), pointer(x.scales), pointer(x.sums), pointer(raw)
        sizes = long(out.shape[0]), long(w.rows), long(w.cols)
        self.c.model_matmul(KINDS[w.kind], pointer(out), *ins, *sizes)

    def matmul_f32(self, out, x, w: Matrix) -> None:
        raw = np.ascontiguousarray(unpack_matrix(w.kind, w.data, w.rows, w.cols))
        sizes = long(x.shape[0]), long(w.rows), long(w.cols)
        self.c.model_matmul_f32(pointer(out), pointer(x), pointer(raw), *sizes)

    def add(self, out, x) -> None:
        rows, cols = out.shape
        stride = long(0 if x.ndim == 1 else cols)
        self.c.model_add(pointer(out), pointer(x), long(rows), long(cols), stride)

    def rms_norm(self, out, x, weight, eps: float) -> None:
        x = np.ascontiguousarray(x)
        sizes = long(x.shape[0]), long(x.shape[1])
        self.c.model_rms_norm(
            pointer(out), pointer(x), pointer(weight), *sizes, ctypes.c_float(eps)
        )

    def l2_norm(self, out, x, eps: float, scale: float) -> None:
        x = np.ascontiguousarray(x)
        sizes = long(x.shape[0] * x.shape[1]), long(x.shape[2])
        floats = ctypes.c_float(eps), ctypes.c_float(scale)
        self.c.model_l2_norm(pointer(out), pointer(x), *sizes, *floats)

    def rope(self, x, positions, table: RopeTable) -> None:
        tables = pointer(table.cos), pointer(table.sin)
        sizes = (*map(long, x.shape), long(table.cos.shape[1]))
        self.c.model_rope(pointer(x), pointer(positions), *tables, *sizes, int(table.adjacent))

    def store_kv(self, kv: KvArena, layer: int, k, v, slot_mapping) -> None:
        block, offset = slot_mapping // BLOCK_TOKENS, slot_mapping % BLOCK_TOKENS
        for part, values in enumerate((k, v)):
            half = np.empty(values.shape, np.uint16)
            self.c.model_to_half(pointer(half), pointer(values), long(values.size))
            kv.blocks[block, layer, part, :, offset] = half.view(np.float16)

    def attention(self, out, q, kv: KvArena, layer: int, step: Step, scale, window=0) -> None:
        group = q.shape[1] // kv.blocks.shape[3]
        for t in range(q.shape[0]):
            count = int(step.positions[t]) + 1
            first = long(max(0, count - window) if window else 0)
            table = step.block_tables[step.seq_index[t], : -(-count // BLOCK_TOKENS)]
            for head in range(q.shape[1]):
                keys, values = (
                    np.ascontiguousarray(kv.blocks[table, layer, part, head // group])
                    for part in (0, 1)
                )
                row = np.empty(q.shape[2], np.float32)
                ins = pointer(np.ascontiguousarray(q[t, head])), pointer(keys), pointer(values)
                sizes = first, long(count), long(q.shape[2]), ctypes.c_float(scale)
                self.c.model_attention(pointer(row), *ins, *sizes)
                out[t, head] = row

    def silu_mul(self, out, gate, up) -> None:
        self.c.model_silu_mul(pointer(out), pointer(gate), pointer(up), long(out.size))

    def gelu_mul(self, out, gate, up) -> None:
        self.c.model_gelu_mul(pointer(out), pointer(gate), pointer(up), long(out.size))

    def sigmoid_mul(self, out, gate, up) -> None:
        gate = np.ascontiguousarray(gate)
        self.c.model_sigmoid_mul(pointer(out), pointer(gate), pointer(up), long(out.size))

    def scale(self, out, factor: float) -> None:
        self.c.model_scale(pointer(out), long(out.size), ctypes.c_float(factor))

    def delta_gates(self, decay, beta, a, b, ssm_a, dt_bias) -> None:
        arrays = map(pointer, (decay, beta, a, b, ssm_a, dt_bias))
        self.c.model_delta_gates(*arrays, *map(long, a.shape))

    def conv1d(self, out, x, state: StateArena, layer: int, weight, step: Step) -> None:
        for t in range(x.shape[0]):
            kept = state.conv[step.state_slots[step.seq_index[t]], layer]
            if step.positions[t] == 0:
                kept[...] = 0
            rows = pointer(out[t]), pointer(kept), pointer(x[t]), pointer(weight)
            self.c.model_conv1d(*rows, *map(long, weight.shape))

    def gated_delta_rule(
        self, out, q, k, v, decay, beta, state: StateArena, layer: int, step: Step
    ) -> None:
        for t in range(v.shape[0]):
            kept = state.delta[step.state_slots[step.seq_index[t]], layer]
            if step.positions[t] == 0:
                kept[...] = 0
            for j in range(v.shape[1]):
                key = j % k.shape[1]
                arrays = out[t, j], kept[j], q[t, key], k[t, key], v[t, j]
                gates = ctypes.c_float(decay[t, j]), ctypes.c_float(beta[t, j])
                self.c.model_delta_rule(*map(pointer, arrays), *gates, *map(long, kept.shape[1:]))

    def exp(self, out, x) -> None:
        self.c.model_exp_all(pointer(out), pointer(x), long(x.size))

    def log(self, out, x) -> None:
        self.c.model_log_all(pointer(out), pointer(x), long(x.size))

    def logits_sum(self, out, logits) -> None:
        for r, row in enumerate(logits):
            out[r] = self.c.model_logits_sum(pointer(row), long(row.size))

    def logits_argmax(self, out, logits) -> None:
        for r, row in enumerate(logits):
            out[r] = self.c.model_logits_argmax(pointer(row), long(row.size))
