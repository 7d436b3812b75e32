"""A model whose ops run on a GPU: its steps go to VRAM, and decode steps become graphs.

What a model wants of a GPU beyond its weights is reserved here, at start: room for the step, and
scratch memory for attention over the longest context. Heads that do not fit are refused here, too.
"""

from collections.abc import Callable
from typing import Final

from kernels.arrays import DeviceAbsent
from kernels.cuda.device import GpuDevice
from kernels.cuda.geometry import ALL_KEYS, AttentionShape, most_stripes, stripes_bytes
from kernels.cuda.graphs import StepRunner
from kernels.ops import F32, KvArena, StateArena, Step
from workers.model.build import Model
from workers.model.config import ModelConfig

OF_LOGITS: Final = 12  # bytes of scratch memory for each row of logits: argmax


class OnDevice:
    """A Model of workers.model.build around another one, whose arrays are the device's."""

    def __init__(
        self, model: Model, device: GpuDevice, *, max_step_tokens: int, max_batch: int
    ) -> None:
        """Raises DeviceAbsent when the GPU cannot take this model, DeviceFull, DeviceLost."""
        self.config = model.config
        self._model = model
        shape = attention_shape(self.config)
        refuse_heads(shape, device)
        slots = most_stripes(self.config.context_length, shape)
        device.prepare(max(stripes_bytes(slots, shape), OF_LOGITS * max_step_tokens))
        self.runner = StepRunner(
            device,
            max_tokens=max_step_tokens,
            max_sequences=max_batch,
            context_length=self.config.context_length,
        )

    def forward(
        self,
        step: Step,
        kv: KvArena,
        state: StateArena | None,
        after_layer: Callable[[], None],
    ) -> F32:
        """As Model.forward; kv and state are the same arrays in every call."""
        return self.runner.run(
            step, lambda sent, after: self._model.forward(sent, kv, state, after), after_layer
        )


def attention_shape(config: ModelConfig) -> AttentionShape:
    """Of its layers that see all keys."""
    return AttentionShape(config.num_heads, config.num_kv_heads, config.head_dim, ALL_KEYS)


def refuse_heads(shape: AttentionShape, device: GpuDevice) -> None:
    """Raises DeviceAbsent when a block's shared memory does not hold a stripe of this model."""
    if shape.decode_bytes > device.shared_bytes:
        wanted, given = shape.decode_bytes >> 10, device.shared_bytes >> 10
        raise DeviceAbsent(
            f"{device.name}: heads of {shape.head_dim} numbers, {shape.share} to a KV head, need "
            f"{wanted} KiB of shared memory a block; this GPU has {given}"
        )
