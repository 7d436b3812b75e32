"""qwen2 (2 and 2.5): llama with biases on q, k and v, and halves of a head that turn together.

Source: transformers' modeling_qwen2.
"""

from workers.model.attention import attention_tensors
from workers.model.config import ModelConfig
from workers.model.decoder import Layer, decoder_tensors, pre_norm_layers
from workers.model.feed_forward import feed_forward_tensors
from workers.model.gguf_file import Expected
from workers.model.layers import norm_tensor
from workers.model.pack import Weights


def qwen2_tensors(config: ModelConfig) -> list[Expected]:
    """What a qwen2 GGUF holds."""

    def of_layer(prefix: str) -> list[Expected]:
        return [
            norm_tensor(prefix + "attn_norm", config.hidden),
            *attention_tensors(config, prefix, bias="required"),
            norm_tensor(prefix + "ffn_norm", config.hidden),
            *feed_forward_tensors(config, prefix),
        ]

    return decoder_tensors(config, of_layer)


def qwen2_layers(weights: Weights) -> list[Layer]:
    return pre_norm_layers(weights, adjacent=False)
