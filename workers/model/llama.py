"""llama: the plainest decoder. Mistral, SmolLM2 and others are llama, too.

RoPE pairs neighbours, for so GGUF stores the rows of q and k; Llama 3 divides its frequencies by
factors of its own. Source: transformers' modeling_llama.
"""

from workers.model.attention import ROPE_FACTORS, attention_tensors
from workers.model.config import ModelConfig
from workers.model.decoder import Layer, decoder_tensors, pre_norm_layers
from workers.model.feed_forward import feed_forward_tensors
from workers.model.gguf_file import Expected
from workers.model.layers import norm_tensor
from workers.model.pack import Weights


def llama_tensors(config: ModelConfig) -> list[Expected]:
    """What a llama GGUF holds."""

    def of_layer(prefix: str) -> list[Expected]:
        return [
            norm_tensor(prefix + "attn_norm", config.hidden),
            *attention_tensors(config, prefix, bias="optional"),
            Expected(f"{prefix}attn_output.bias", (config.hidden,), is_optional=True),
            norm_tensor(prefix + "ffn_norm", config.hidden),
            *feed_forward_tensors(config, prefix, bias="optional"),
        ]

    factors = Expected(ROPE_FACTORS, (config.rope_dims // 2,), is_optional=True)
    return [*decoder_tensors(config, of_layer), factors]


def llama_layers(weights: Weights) -> list[Layer]:
    return pre_norm_layers(weights, adjacent=True)
