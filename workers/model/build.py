"""From a folder of a model to its graph, ready to run.

A new architecture is one file beside llama.py and one line of ARCHITECTURES.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from kernels.arrays import HOST, Arrays
from kernels.ops import F32, KvArena, Ops, StateArena, Step
from workers.model.config import BadModel, ModelConfig, read_config
from workers.model.decoder import Decoder, Layer
from workers.model.gemma3 import gemma3_config, gemma3_layers, gemma3_tensors
from workers.model.gguf_file import Expected
from workers.model.llama import llama_layers, llama_tensors
from workers.model.pack import Weights
from workers.model.qwen2 import qwen2_layers, qwen2_tensors
from workers.model.qwen3 import qwen3_layers, qwen3_tensors
from workers.model.qwen35 import qwen35_config, qwen35_layers, qwen35_tensors

PACK: Final = "weights.pack"


class Model(Protocol):
    """A graph with its weights."""

    config: ModelConfig

    def forward(
        self,
        step: Step,
        kv: KvArena,
        state: StateArena | None,
        after_layer: Callable[[], None],
    ) -> F32:
        """Logits (R, V) of step.logit_rows: a view that the next call overwrites.

        state        None when config.state is
        after_layer  called after each layer; what it raises comes through, and the step is void:
                     KV it wrote is written again with the same bits, but state has moved
        """


@dataclass(frozen=True, slots=True)
class Architecture:
    """How one architecture is read and built.

    config   (metadata, vocab_size) -> ModelConfig
    tensors  the tensors that a file of it holds
    layers   the layers of its graph
    """

    config: Callable[[Any, int], ModelConfig]
    tensors: Callable[[ModelConfig], list[Expected]]
    layers: Callable[[Weights], list[Layer]]


ARCHITECTURES: Final = {
    "gemma3": Architecture(gemma3_config, gemma3_tensors, gemma3_layers),
    "llama": Architecture(read_config, llama_tensors, llama_layers),
    "qwen2": Architecture(read_config, qwen2_tensors, qwen2_layers),
    "qwen3": Architecture(read_config, qwen3_tensors, qwen3_layers),
    "qwen35": Architecture(qwen35_config, qwen35_tensors, qwen35_layers),
}


def architecture_of(name: str) -> Architecture:
    """Raises BadModel that names the known ones."""
    architecture = ARCHITECTURES.get(name)
    if architecture is None:
        known = ", ".join(sorted(ARCHITECTURES))
        raise BadModel(f"architecture {name!r} is not supported, only {known}")
    return architecture


def load_model(
    folder: Path,
    ops: Ops,
    *,
    max_step_tokens: int,
    max_logit_rows: int,
    in_huge_pages: bool = False,
    arrays: Arrays = HOST,
) -> Model:
    """The model in folder. Raises BadModel, and what arrays raises.

    max_step_tokens, max_logit_rows   sizes of the largest step: its arrays are allocated now
    arrays                            where the ops want weights and activations
    """
    weights = Weights.open(folder / PACK, in_huge_pages=in_huge_pages)
    weights.place(arrays)
    layers = architecture_of(weights.config.architecture).layers(weights)
    return Decoder(
        weights, layers, ops, max_step_tokens=max_step_tokens, max_logit_rows=max_logit_rows
    )
