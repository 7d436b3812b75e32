"""What logits should be: the llama graph in float64, written from the specification."""

from pathlib import Path

import numpy as np
from gguf import GGUFReader, quants


def exact_logits(path: Path, token_ids: list[int]) -> np.ndarray:
    """(T, V) float64 logits of every position; nothing is rounded but K and V, to float16."""
    reader = GGUFReader(path)
    fields = {k: f.contents() for k, f in reader.fields.items() if k.startswith("llama.")}
    w = {
        t.name: quants.dequantize(t.data, t.tensor_type).astype(np.float64) for t in reader.tensors
    }
    heads, kv_heads = fields["llama.attention.head_count"], fields["llama.attention.head_count_kv"]
    dim, eps = (
        fields["llama.attention.key_length"],
        fields["llama.attention.layer_norm_rms_epsilon"],
    )
    theta = fields["llama.rope.freq_base"]

    def norm(x, name):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * w[name + ".weight"]

    def project(x, name):
        return x @ w[name + ".weight"].T + w.get(name + ".bias", 0.0)

    def rope(x):
        angle = np.arange(len(x))[:, None, None] * theta ** (-2 * np.arange(dim // 2) / dim)
        even, odd, cos, sin = x[..., ::2], x[..., 1::2], np.cos(angle), np.sin(angle)
        return np.stack([even * cos - odd * sin, even * sin + odd * cos], -1).reshape(x.shape)

    h = w["token_embd.weight"][token_ids]
    causal = np.tril(np.ones((len(h), len(h)), bool))
    for block in range(fields["llama.block_count"]):
        p = f"blk.{block}."
        x = norm(h, p + "attn_norm")
        q = rope(project(x, p + "attn_q").reshape(len(h), heads, dim))
        k = rope(project(x, p + "attn_k").reshape(len(h), kv_heads, dim))
        v = project(x, p + "attn_v").reshape(len(h), kv_heads, dim)
        k, v = (a.astype(np.float16).astype(np.float64) for a in (k, v))
        k, v = (np.repeat(a, heads // kv_heads, axis=1) for a in (k, v))
        scores = np.where(causal, np.einsum("thd,phd->htp", q, k) / np.sqrt(dim), -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = np.einsum("htp,phd->thd", weights / weights.sum(-1, keepdims=True), v)
        h = h + project(mixed.reshape(len(h), -1), p + "attn_output")
        x = norm(h, p + "ffn_norm")
        gate = project(x, p + "ffn_gate")
        h = h + project(gate / (1 + np.exp(-gate)) * project(x, p + "ffn_up"), p + "ffn_down")
    head = w.get("output.weight", w["token_embd.weight"])
    return norm(h, "output_norm") @ head.T
