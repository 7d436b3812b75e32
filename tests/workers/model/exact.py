"""What logits should be: every architecture in float64, written from the specification."""

from pathlib import Path

import numpy as np
from gguf import GGUFReader, quants


def exact_logits(path: Path, token_ids: list[int]) -> np.ndarray:
    """(T, V) float64 logits of every position; nothing is rounded but K and V, to float16."""
    return Exact(path).logits(token_ids)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def silu(x):
    return x * sigmoid(x)


def gelu(x):
    return x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def unit(x):
    """Each head divided by its length."""
    return x / np.sqrt((x * x).sum(-1, keepdims=True) + 1e-6)


class Exact:
    """One file's keys and weights; one sequence, in one piece."""

    def __init__(self, path: Path) -> None:
        reader = GGUFReader(path)
        self.fields = {k: f.contents() for k, f in reader.fields.items() if "tokenizer" not in k}
        self.name = self.fields["general.architecture"]
        self.w = {
            t.name: quants.dequantize(t.data, t.tensor_type).astype(np.float64)
            for t in reader.tensors
        }
        self.eps = self.key("attention.layer_norm_rms_epsilon")
        self.num_layers = self.key("block_count") - self.key("nextn_predict_layers", 0)

    def key(self, name, default=None):
        return self.fields.get(f"{self.name}.{name}", default)

    def logits(self, token_ids):
        is_gemma = self.name == "gemma3"
        h = self.w["token_embd.weight"][token_ids]
        if is_gemma:
            h = h * np.sqrt(h.shape[1])
        for block in range(self.num_layers):
            p = f"blk.{block}."
            x = self.norm(h, p + "attn_norm")
            mixer = self.delta_net if p + "ssm_a" in self.w else self.attention
            x = mixer(x, block)
            h = h + (self.norm(x, p + "post_attention_norm") if is_gemma else x)
            is_second = self.name == "qwen35"
            x = self.norm(h, p + ("post_attention_norm" if is_second else "ffn_norm"))
            x = (gelu if is_gemma else silu)(self.project(x, p + "ffn_gate")) * self.project(
                x, p + "ffn_up"
            )
            x = self.project(x, p + "ffn_down")
            h = h + (self.norm(x, p + "post_ffw_norm") if is_gemma else x)
        head = self.w.get("output.weight", self.w["token_embd.weight"])
        return self.norm(h, "output_norm") @ head.T

    def norm(self, x, name):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.eps) * self.w[name + ".weight"]

    def project(self, x, name):
        return x @ self.w[name + ".weight"].T + self.w.get(name + ".bias", 0.0)

    def attention(self, x, block):
        p, heads = f"blk.{block}.", self.key("attention.head_count")
        kv_heads, dim = self.key("attention.head_count_kv"), self.key("attention.key_length")
        q = self.project(x, p + "attn_q").reshape(len(x), heads, -1)
        k = self.project(x, p + "attn_k").reshape(len(x), kv_heads, dim)
        v = self.project(x, p + "attn_v").reshape(len(x), kv_heads, dim)
        q, gate = q[..., :dim], q[..., dim:]
        if p + "attn_q_norm.weight" in self.w:
            q, k = self.norm(q, p + "attn_q_norm"), self.norm(k, p + "attn_k_norm")
        window, theta, factor = self.locality(block, len(x))
        q, k = self.rope(q, theta, factor), self.rope(k, theta, factor)
        k, v = (a.astype(np.float16).astype(np.float64) for a in (k, v))
        k, v = (np.repeat(a, heads // kv_heads, axis=1) for a in (k, v))
        behind = np.arange(len(x))[:, None] - np.arange(len(x))
        seen = (behind >= 0) & (behind < window)
        scale = self.key("attention.scale", 1 / np.sqrt(dim))
        scores = np.where(seen, np.einsum("thd,phd->htp", q, k) * scale, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = np.einsum("htp,phd->thd", weights / weights.sum(-1, keepdims=True), v)
        if gate.size:
            mixed = mixed * sigmoid(gate)
        return self.project(mixed.reshape(len(x), -1), p + "attn_output")

    def locality(self, block, everything):
        """(window, base of the frequencies, factor that divides positions)"""
        pattern = self.key("attention.sliding_window_pattern", 6)
        local = pattern[block] if isinstance(pattern, list) else (block + 1) % pattern != 0
        if self.name == "gemma3" and local:
            return self.key("attention.sliding_window"), self.key("rope.freq_base_swa"), 1.0
        return everything, self.key("rope.freq_base"), self.key("rope.scaling.factor", 1.0)

    def rope(self, x, theta, factor):
        turned = self.key("rope.dimension_count", x.shape[2])
        angle = np.arange(len(x))[:, None, None] / factor
        angle = angle * theta ** (-2 * np.arange(turned // 2) / turned)
        cos, sin, y = np.cos(angle), np.sin(angle), x.copy()
        near = self.name == "llama"
        half = turned // 2
        first, second = (
            (slice(0, turned, 2), slice(1, turned, 2))
            if near
            else (slice(0, half), slice(half, turned))
        )
        a, b = x[..., first], x[..., second]
        y[..., first], y[..., second] = a * cos - b * sin, a * sin + b * cos
        return y

    def delta_net(self, x, block):
        p, w = f"blk.{block}.", self.w
        nk, nv = self.key("ssm.group_count"), self.key("ssm.time_step_rank")
        dim = self.key("ssm.state_size")
        taps = w[p + "ssm_conv1d.weight"]
        raw = self.project(x, p + "attn_qkv")
        raw = np.concatenate([np.zeros((taps.shape[1] - 1, raw.shape[1])), raw])
        y = silu(sum(raw[i : i + len(x)] * taps[:, i] for i in range(taps.shape[1])))
        q, k, v = np.split(y, [nk * dim, 2 * nk * dim], axis=1)
        q = unit(q.reshape(len(x), nk, dim)) / np.sqrt(dim)
        k, v = unit(k.reshape(len(x), nk, dim)), v.reshape(len(x), nv, dim)
        whose = np.arange(nv) % nk
        a = self.project(x, p + "ssm_alpha") + w[p + "ssm_dt.bias"]
        decay = np.exp(w[p + "ssm_a"] * np.logaddexp(0, a))
        beta = sigmoid(self.project(x, p + "ssm_beta"))
        s, out = np.zeros((nv, dim, dim)), np.empty_like(v)
        for t in range(len(x)):
            s = s * decay[t][:, None, None]
            error = beta[t][:, None] * (v[t] - np.einsum("hkv,hk->hv", s, k[t][whose]))
            s = s + k[t][whose][:, :, None] * error[:, None, :]
            out[t] = np.einsum("hkv,hk->hv", s, q[t][whose])
        out = self.norm(out, p + "ssm_norm").reshape(len(x), -1)
        return self.project(out * silu(self.project(x, p + "attn_gate")), p + "ssm_out")
