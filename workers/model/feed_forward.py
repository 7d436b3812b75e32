"""The feed-forward half of a layer: out = down( activation(gate(x)) * up(x) )."""

from dataclasses import dataclass
from typing import Final

from kernels.ops import Ops
from workers.model.config import ModelConfig
from workers.model.gguf_file import Expected
from workers.model.layers import Projection, projection_tensors
from workers.model.pack import Weights
from workers.model.workspace import Frame

SILU, GELU = "silu", "gelu"
NAMES: Final = ("ffn_gate", "ffn_up", "ffn_down")


def feed_forward_tensors(config: ModelConfig, prefix: str, *, bias: str = "none") -> list[Expected]:
    """What a FeedForward reads.   bias: as in projection_tensors"""
    wide, narrow = (config.ffn, config.hidden), (config.hidden, config.ffn)
    expected = []
    for name, shape in zip(NAMES, (wide, wide, narrow), strict=True):
        expected += projection_tensors(prefix + name, *shape, bias=bias)
    return expected


@dataclass(frozen=True, slots=True)
class FeedForward:
    """activation: "silu" or "gelu", which is its tanh form."""

    gate: Projection
    up: Projection
    down: Projection
    activation: str = SILU

    @classmethod
    def of(cls, weights: Weights, prefix: str, activation: str = SILU) -> "FeedForward":
        gate, up, down = (Projection.of(weights, prefix + name) for name in NAMES)
        return cls(gate, up, down, activation)

    def apply(self, ops: Ops, frame: Frame) -> None:
        """A Branch of workers.model.decoder."""
        space, x = frame.space.feed_forward, frame.space.normed
        gate, up = space.gate, space.up
        self.gate.apply(ops, gate.values, x)
        self.up.apply(ops, up, x)
        activate = ops.gelu_mul if self.activation == GELU else ops.silu_mul
        activate(gate.values, gate.values, up)
        gate.quantize(ops)
        self.down.apply(ops, frame.space.branch, gate)
