"""Tiny random models of transformers, written as GGUF: a judge of the graphs from outside.

    python tests/slow/from_transformers.py FOLDER [--seeds 1 2]        needs the extra `golden`

Writes for each architecture and seed NAME.gguf and NAME.npz (ids, logits in float32). Shapes and
seeds differ from the files of tests/golden, and the tensors are renamed, reordered and folded here,
by reference to transformers alone, not by llama.cpp's converter. Matrices lie on the grid of the
type they are written in (Q4_0 and Q8_0 in turn), so that both sides compute with the same weights.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from gguf import GGMLQuantizationType as Type
from gguf import GGUFWriter, quants
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)
from transformers.models.qwen3_5.configuration_qwen3_5 import Qwen3_5TextConfig
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5ForCausalLM

VOCAB, NUM_IDS = 320, 72
NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "linear_attn.in_proj_qkv": "attn_qkv",
    "linear_attn.in_proj_z": "attn_gate",
    "linear_attn.in_proj_a": "ssm_alpha",
    "linear_attn.in_proj_b": "ssm_beta",
    "linear_attn.conv1d": "ssm_conv1d",
    "linear_attn.norm": "ssm_norm",
    "linear_attn.out_proj": "ssm_out",
}
GEMMA = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
QWEN35 = {"post_attention_layernorm": "post_attention_norm"}


def rope(theta, **more):
    return {"rope_type": "default", "rope_theta": theta, **more}


def shape_of(seed):
    """Sizes that differ from seed to seed and from the golden files."""
    wide = seed % 2
    return {
        "vocab_size": VOCAB,
        "hidden_size": 192 if wide else 160,
        "intermediate_size": 288 if wide else 320,
        "num_hidden_layers": 4 if wide else 5,
        "num_attention_heads": 6 if wide else 4,
        "num_key_value_heads": 3 if wide else 1,
        "head_dim": 32 if wide else 48,
        "max_position_embeddings": 256,
        "tie_word_embeddings": not wide,
    }


def llama(seed):
    shape = shape_of(seed) | {"rms_norm_eps": 1e-5, "rope_parameters": rope(5e4)}
    return LlamaForCausalLM(LlamaConfig(**shape))


def qwen2(seed):
    shape = shape_of(seed) | {"rms_norm_eps": 1e-6, "rope_parameters": rope(1e6)}
    shape["head_dim"] = shape["hidden_size"] // shape["num_attention_heads"]
    return Qwen2ForCausalLM(Qwen2Config(**shape))


def qwen3(seed):
    shape = shape_of(seed) | {"rms_norm_eps": 1e-6, "rope_parameters": rope(1e6)}
    return Qwen3ForCausalLM(Qwen3Config(**shape))


def gemma3(seed):
    shape = shape_of(seed) | {"sliding_window": 20, "num_hidden_layers": 7 + seed % 2}
    shape |= {"query_pre_attn_scalar": shape["head_dim"], "tie_word_embeddings": True}
    bases = {"full_attention": rope(1e6), "sliding_attention": rope(1e4)}
    return Gemma3ForCausalLM(Gemma3TextConfig(**shape, rope_parameters=bases))


def interval(seed):
    """Every so-maniest layer of qwen35 is full attention."""
    return 2 if seed % 2 else 4


def qwen35(seed):
    shape = shape_of(seed) | {"rms_norm_eps": 1e-6}
    shape |= {"num_hidden_layers": 4, "linear_conv_kernel_dim": 4}
    shape |= {"linear_num_key_heads": 2, "linear_num_value_heads": 4 if seed % 2 else 2}
    shape |= {
        "linear_key_head_dim": 32,
        "linear_value_head_dim": 32,
        "full_attention_interval": interval(seed),
    }
    turned = rope(1e7, partial_rotary_factor=0.5, mrope_section=[3, 3, 2], mrope_interleaved=True)
    return Qwen3_5ForCausalLM(Qwen3_5TextConfig(**shape, rope_parameters=turned))


MODELS = {"llama": llama, "qwen2": qwen2, "qwen3": qwen3, "gemma3": gemma3, "qwen35": qwen35}


def gain(name):
    """Logits spread wide; what is added to the residual stream does not carry noise on and on."""
    if "embed" in name or "lm_head" in name:
        return 2.5
    return 0.3 if "linear_attn.out_proj" in name else 1.0


def scatter(model, seed):
    """Random weights: activations near 1, logits of a few units; matrices on their type's grid.

    Gives the type of each matrix.
    """
    random, types = np.random.default_rng(seed), {}
    with torch.no_grad():
        for index, (name, value) in enumerate(sorted(model.named_parameters())):
            if value.ndim == 2:
                types[name] = (
                    (Type.Q4_0, Type.Q8_0)[index % 2] if value.shape[1] % 32 == 0 else Type.F32
                )
                weights = random.normal(0, gain(name) / np.sqrt(value.shape[1]), value.shape)
                raw = quants.quantize(weights.astype(np.float32), types[name])
                new = quants.dequantize(raw, types[name])
            elif "A_log" in name:  # a decay at once would leave noise, made large by a norm
                new = np.log(random.uniform(0.1, 1.5, value.shape))
            elif "dt_bias" in name:
                new = random.normal(-2, 0.5, value.shape)
            elif "norm" in name:
                is_centred = float(value.detach().abs().mean()) < 0.5  # gemma, qwen35: 1 is added
                new = random.uniform(0.7, 1.3, value.shape) - (1 if is_centred else 0)
            else:
                new = random.normal(0, 0.5 if "conv" in name else 0.3, value.shape)
            value.copy_(torch.from_numpy(np.asarray(new, np.float32)))
    return types


def folded(model, architecture, name, value):
    """The values as GGUF keeps them: norms + 1, heads in its order, A as it is used."""
    config, tensor = model.config, value.detach().numpy()
    if architecture == "llama" and name.endswith(("q_proj.weight", "k_proj.weight")):
        rows = tensor.reshape(-1, 2, config.head_dim // 2, tensor.shape[1])
        return rows.transpose(0, 2, 1, 3).reshape(tensor.shape)
    if architecture in ("gemma3", "qwen35") and "norm" in name and "linear_attn" not in name:
        return tensor + 1
    if "linear_attn" not in name:
        return tensor
    if name.endswith("A_log"):
        tensor = -np.exp(tensor)
    if name.endswith("conv1d.weight"):
        tensor = tensor[:, 0]
    return tiled(config, name, tensor)


def tiled(config, name, tensor):
    """Heads of v: transformers groups those of one head of k, GGUF lays the groups in turn."""
    k_heads, v_heads = config.linear_num_key_heads, config.linear_num_value_heads
    order = np.arange(v_heads).reshape(k_heads, -1).T.reshape(-1)
    dim, begin = config.linear_value_head_dim, 2 * k_heads * config.linear_key_head_dim
    rows = (order[:, None] * dim + np.arange(dim)).reshape(-1)
    if name.endswith("out_proj.weight"):
        return tensor[:, rows]
    if name.endswith(("in_proj_qkv.weight", "conv1d.weight")):
        return np.concatenate([tensor[:begin], tensor[begin:][rows]])
    if name.endswith("in_proj_z.weight"):
        return tensor[rows]
    return tensor if "norm" in name else tensor[order]


def gguf_name(architecture, name):
    parts = name.removeprefix("model.").split(".")
    if parts[0] != "layers":
        known = {"embed_tokens": "token_embd", "norm": "output_norm", "lm_head": "output"}
        return f"{known[parts[0]]}.weight"
    prefix, inner = f"blk.{parts[1]}", ".".join(parts[2:])
    special = {"linear_attn.A_log": "ssm_a", "linear_attn.dt_bias": "ssm_dt.bias"}
    if inner in special:
        return f"{prefix}.{special[inner]}"
    inner, kind = inner.rsplit(".", 1)
    names = NAMES | {"gemma3": GEMMA, "qwen35": QWEN35}.get(architecture, {})
    return f"{prefix}.{names[inner]}.{kind}"


def write_keys(writer, config, architecture):
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    head_dim = getattr(config, "head_dim", config.hidden_size // config.num_attention_heads)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    turned = config.rope_parameters
    writer.add_rope_freq_base(turned.get("full_attention", turned)["rope_theta"])
    if architecture == "gemma3":
        writer.add_sliding_window(config.sliding_window)
    if architecture == "qwen35":
        writer.add_rope_dimension_count(head_dim // 2)
        every = config.layer_types.index("full_attention") + 1
        writer.add_uint32("qwen35.full_attention_interval", every)
        writer.add_ssm_conv_kernel(config.linear_conv_kernel_dim)
        writer.add_ssm_group_count(config.linear_num_key_heads)
        writer.add_ssm_time_step_rank(config.linear_num_value_heads)
        writer.add_ssm_state_size(config.linear_key_head_dim)
        writer.add_ssm_inner_size(config.linear_num_value_heads * config.linear_value_head_dim)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list([chr(0x100 + i) for i in range(VOCAB)])
    writer.add_token_types([1] * VOCAB)


def write(path, model, architecture, types):
    writer = GGUFWriter(path, architecture)
    write_keys(writer, model.config, architecture)
    for name, value in model.named_parameters():
        values = np.ascontiguousarray(folded(model, architecture, name, value), np.float32)
        kind = types.get(name, Type.F32)
        writer.add_tensor(
            gguf_name(architecture, name), quants.quantize(values, kind), raw_dtype=kind
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--only", nargs="+", default=list(MODELS))
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    for architecture in args.only:
        for seed in args.seeds:
            model = MODELS[architecture](seed).float().eval()
            types = scatter(model, seed)
            ids = np.random.default_rng(seed + 100).integers(0, VOCAB, NUM_IDS)
            with torch.no_grad():
                logits = model(torch.from_numpy(ids)[None]).logits[0].float().numpy()
            name = f"{architecture}-{seed}"
            write(args.folder / f"{name}.gguf", model, architecture, types)
            np.savez(args.folder / f"{name}.npz", ids=ids, logits=logits)
            print(name, "std of logits", round(float(logits.std()), 2), flush=True)


if __name__ == "__main__":
    main()
