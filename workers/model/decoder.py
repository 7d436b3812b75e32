"""What all decoders have in common: tokens of a step in, logits out, layer after layer.

    h = embedding of the token
    each layer:   h += attention( norm(h) )         or what the layer has in its place
                  h += feed_forward( norm(h) )
    logits = head( norm(h) ), for the rows that want them

An architecture says which halves its layers have; see llama.py for the simplest.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

from kernels.ops import F32, I32, KvArena, Ops, StateArena, Step
from workers.model.attention import Attention, full_rope
from workers.model.config import ModelConfig
from workers.model.feed_forward import FeedForward
from workers.model.gguf_file import Expected
from workers.model.layers import Projections, Rows, norm_tensor
from workers.model.pack import Weights
from workers.model.workspace import Frame, Workspace

EMBEDDING: Final = "token_embd.weight"
HEAD: Final = "output"
LAST_NORM: Final = "output_norm"


class Branch(Protocol):
    """What half a layer computes."""

    def apply(self, ops: Ops, frame: Frame) -> None:
        """frame.space.branch = what comes of frame.space.normed, which is quantised already"""


@dataclass(frozen=True, slots=True)
class Half:
    """hidden += branch( norm(hidden) ), itself normed again where there is a post norm."""

    norm: F32
    branch: Branch
    post_norm: F32 | None = None


Layer = tuple[Half, Half]


def decoder_tensors(
    config: ModelConfig, of_layer: Callable[[str], Sequence[Expected]]
) -> list[Expected]:
    """The tensors around the layers, and of_layer("blk.N.") of each."""
    table = (config.vocab_size, config.hidden)
    expected = [
        Expected(EMBEDDING, table),
        Expected(f"{HEAD}.weight", table, is_optional=True),
        norm_tensor(LAST_NORM, config.hidden),
    ]
    for index in range(config.num_layers):
        expected += of_layer(f"blk.{index}.")
    return expected


def pre_norm_layers(weights: Weights, *, adjacent: bool) -> list[Layer]:
    """Full attention, then a feed-forward part, each behind its norm.   adjacent: see full_rope"""
    rope = full_rope(weights, adjacent=adjacent)
    layers = []
    for index in range(weights.config.num_layers):
        prefix = f"blk.{index}."
        attention = Attention.of(weights, prefix, rope, index)
        feed_forward = FeedForward.of(weights, prefix)
        first = Half(weights.vector(prefix + "attn_norm.weight"), attention)
        layers.append((first, Half(weights.vector(prefix + "ffn_norm.weight"), feed_forward)))
    return layers


class Decoder:
    """A Model of workers.model.build; its arrays are overwritten by the next step."""

    def __init__(
        self,
        weights: Weights,
        layers: Sequence[Layer],
        ops: Ops,
        *,
        max_step_tokens: int,
        max_logit_rows: int,
    ) -> None:
        config = self.config = weights.config
        self._ops, self._layers = ops, layers
        self._embedding = weights.matrix(EMBEDDING)
        self._norm = weights.vector(f"{LAST_NORM}.weight")
        is_tied = not weights.has(f"{HEAD}.weight")
        table = Projections((self._embedding,), (None,))
        self._head = table if is_tied else Projections.of(weights, HEAD)
        arrays = weights.arrays
        self._whole = self._workspace = Workspace.allocate(config, max_step_tokens, arrays)
        self._last = Rows.allocate(max_logit_rows, config.hidden, arrays)
        self._logits = arrays.reserve((max_logit_rows, config.vocab_size), np.float32)

    def forward(
        self,
        step: Step,
        kv: KvArena,
        state: StateArena | None,
        after_layer: Callable[[], None],
    ) -> F32:
        """The wanted logits (R, V), valid until the next call."""
        space = self._workspace_of(step.token_ids.size)
        self._ops.embed(space.hidden, self._embedding, step.token_ids)
        if self.config.embedding_scale != 1.0:
            self._ops.scale(space.hidden, self.config.embedding_scale)
        frame = Frame(step, kv, state, space, int(step.positions.max()) + 1)
        branch = None  # of the half before, not yet added to hidden
        for layer in self._layers:
            for half in layer:
                branch = self._branch(half, frame, branch)
            after_layer()
        if branch is not None:
            self._ops.add(space.hidden, branch)
        return self._head_logits(space.hidden, step.logit_rows)

    def _workspace_of(self, num_tokens: int) -> Workspace:
        """Views for this step, kept for the next: decode steps are often of one size."""
        assert 0 < num_tokens <= len(self._whole.hidden), (num_tokens, len(self._whole.hidden))
        if len(self._workspace.hidden) != num_tokens:
            self._workspace = self._whole.first(num_tokens)
        return self._workspace

    def _branch(self, half: Half, frame: Frame, before: F32 | None) -> F32:
        """Adds what the half before gave to hidden, and computes what this one gives."""
        ops, space, normed, eps = self._ops, frame.space, frame.space.normed, self.config.rms_eps
        ops.add_norm(normed.values, normed.quantized, space.hidden, before, half.norm, eps)
        half.branch.apply(ops, frame)
        if half.post_norm is not None:
            ops.rms_norm(space.branch, space.branch, half.post_norm, eps)
        return space.branch

    def _head_logits(self, hidden: F32, logit_rows: I32) -> F32:
        num_rows = logit_rows.size
        logits = self._logits[:num_rows]
        if num_rows:
            last = self._last.first(num_rows)
            self._ops.take_rows(last.values, hidden, logit_rows)
            values, eps = last.values, self.config.rms_eps
            self._ops.add_norm(values, last.quantized, values, None, self._norm, eps)
            self._head.apply(self._ops, (logits,), last)
        return logits
