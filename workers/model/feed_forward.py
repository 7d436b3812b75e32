"""The feed-forward half of a layer: out = down( activation(gate(x)) * up(x) )."""

from dataclasses import dataclass
from typing import Final

from kernels.ops import GELU, SILU, Ops
from workers.model.config import ModelConfig
from workers.model.gguf_file import Expected
from workers.model.layers import Projections, projection_tensors
from workers.model.pack import Weights
from workers.model.workspace import Frame

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
    """activation: SILU or GELU of kernels.ops."""

    gate_and_up: Projections
    down: Projections
    activation: str = SILU

    @classmethod
    def of(cls, weights: Weights, prefix: str, activation: str = SILU) -> "FeedForward":
        *both, down = (prefix + name for name in NAMES)
        return cls(Projections.of(weights, *both), Projections.of(weights, down), activation)

    def apply(self, ops: Ops, frame: Frame) -> None:
        """A Branch of workers.model.decoder."""
        space, x, both = frame.space.feed_forward, frame.space.normed, self.gate_and_up
        gate, up = space.gate, space.up
        if x.quantized is not None and gate.quantized is not None:
            ops.gated_project(
                gate.quantized, gate.values, up, x.quantized,
                both.weights, both.biases, self.activation,
            )  # fmt: skip
        else:
            both.apply(ops, (gate.values, up), x)
            activate = ops.gelu_mul if self.activation == GELU else ops.silu_mul
            activate(gate.values, gate.values, up)
            gate.quantize(ops)
        self.down.apply(ops, (frame.space.branch,), gate)
