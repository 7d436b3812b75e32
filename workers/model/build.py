"""From a folder of a model to its graph, ready to run.

A new architecture is one file beside llama.py and one line here.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from kernels.ops import F32, KvArena, Ops, Step
from workers.model.config import BadModel, ModelConfig, read_config
from workers.model.gguf_file import Expected
from workers.model.llama import Llama, llama_tensors
from workers.model.pack import Weights

PACK: Final = "weights.pack"


class Model(Protocol):
    """A graph with its weights."""

    config: ModelConfig

    def forward(self, step: Step, kv: KvArena, after_layer: Callable[[], None]) -> F32:
        """Logits (R, V) of step.logit_rows: a view that the next call overwrites.

        after_layer  called after each layer; what it raises comes through, and the step is void
        """


@dataclass(frozen=True, slots=True)
class Architecture:
    """How one architecture is read and built.

    config   (metadata, vocab_size) -> ModelConfig
    tensors  the tensors that the graph reads
    graph    (weights, ops, max_step_tokens=, max_logit_rows=) -> Model
    """

    config: Callable[[Any, int], ModelConfig]
    tensors: Callable[[ModelConfig], list[Expected]]
    graph: Callable[..., Model]


ARCHITECTURES: Final = {"llama": Architecture(read_config, llama_tensors, Llama)}


def architecture_of(name: str) -> Architecture:
    """Raises BadModel that names the known ones."""
    architecture = ARCHITECTURES.get(name)
    if architecture is None:
        known = ", ".join(sorted(ARCHITECTURES))
        raise BadModel(f"architecture {name!r} is not supported, only {known}")
    return architecture


def load_model(folder: Path, ops: Ops, *, max_step_tokens: int, max_logit_rows: int) -> Model:
    """The model in folder. Raises BadModel.

    max_step_tokens, max_logit_rows   sizes of the largest step: its arrays are allocated now
    """
    weights = Weights.open(folder / PACK)
    graph = architecture_of(weights.config.architecture).graph
    return graph(weights, ops, max_step_tokens=max_step_tokens, max_logit_rows=max_logit_rows)
