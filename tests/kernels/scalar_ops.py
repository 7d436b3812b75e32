"""The plain scalar model of ARITHMETIC.md behind the names of kernels.ops.

Slow and simple; what it gives is the law. It reads weights as GGUF blocks, so a mistake in the
packed layout shows too.
"""

import ctypes
import subprocess
from pathlib import Path

import numpy as np

from kernels.layout import unpack_matrix
from kernels.ops import BLOCK_TOKENS, KvArena, Matrix, QuantizedRows, RopeTable, Step

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
    """kernels.ops.Ops, one number after the other."""

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
        sizes = long(x.shape[0]), long(x.shape[1])
        self.c.model_rms_norm(
            pointer(out), pointer(x), pointer(weight), *sizes, ctypes.c_float(eps)
        )

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

    def attention(self, out, q, kv: KvArena, layer: int, step: Step, scale: float) -> None:
        group = q.shape[1] // kv.blocks.shape[3]
        for t in range(q.shape[0]):
            count = int(step.positions[t]) + 1
            table = step.block_tables[step.seq_index[t], : -(-count // BLOCK_TOKENS)]
            for head in range(q.shape[1]):
                keys, values = (
                    np.ascontiguousarray(kv.blocks[table, layer, part, head // group])
                    for part in (0, 1)
                )
                row = np.empty(q.shape[2], np.float32)
                ins = pointer(np.ascontiguousarray(q[t, head])), pointer(keys), pointer(values)
                sizes = long(count), long(q.shape[2]), ctypes.c_float(scale)
                self.c.model_attention(pointer(row), *ins, *sizes)
                out[t, head] = row

    def silu_mul(self, out, gate, up) -> None:
        self.c.model_silu_mul(pointer(out), pointer(gate), pointer(up), long(out.size))

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
