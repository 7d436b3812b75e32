"""What a pool computes with: its ops, where their arrays lie, and what memory it may take.

    cpu                          this process, with the configured threads
    gpu   LOCKSTEP_GPU=auto      the machine's GPU
                       emulate   the GPU's kernels on the CPU, in memory of their own
                       cpu       a second CPU engine stands in for it

Of a device all memory is reserved at start, in this order: weights, workspace, then what is free
for KV and state. Nothing is reserved later.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kernels.arrays import HOST, Arrays, Device, DeviceAbsent, DeviceFull
from workers.settings import Settings

if TYPE_CHECKING:
    from kernels.ops import Ops
    from workers.engine.limits import EngineLimits
    from workers.model.build import Model

LEFT_BYTES: Final = 256 << 20  # of a device's memory: for the driver, and whoever else draws


@dataclass(frozen=True, slots=True)
class Processor:
    """device: None where the ops work in this process's memory."""

    ops: "Ops"
    device: Device | None = None

    @property
    def arrays(self) -> Arrays:
        return HOST if self.device is None else self.device

    def machine(self, settings: Settings) -> str:
        """All that decides how fast it is, in one line."""
        from workers.engine.calibrate import machine_of

        if self.device is not None:
            return machine_of(0, "", self.device.name)
        return machine_of(settings.num_threads, getattr(self.ops, "isa", ""))

    def load_model(
        self,
        folder: Path,
        limits: "EngineLimits",
        settings: Settings,
        *,
        max_logit_rows: int | None = None,
    ) -> "Model":
        """Weights and workspace are reserved.   max_logit_rows: of a step; None: one a sequence

        Raises BadModel, DeviceAbsent, DeviceFull, DeviceLost.
        """
        from workers.model.build import load_model

        model = load_model(
            folder,
            self.ops,
            max_step_tokens=limits.max_step_tokens,
            max_logit_rows=max_logit_rows or limits.max_batch,
            in_huge_pages=settings.huge_pages and self.device is None,
            arrays=self.arrays,
        )
        return model if self.device is None else self._wrapped(model, limits)

    def _wrapped(self, model: "Model", limits: "EngineLimits") -> "Model":
        """On a real GPU steps go over as a whole, and become graphs."""
        from kernels.cuda.device import GpuDevice
        from workers.model.on_device import OnDevice

        if not isinstance(self.device, GpuDevice):
            return model
        sizes = {"max_step_tokens": limits.max_step_tokens, "max_batch": limits.max_batch}
        try:
            return OnDevice(model, self.device, **sizes)
        except DeviceAbsent:
            self.device.close()  # whoever finds no GPU stays, and its weights would stay there
            raise

    def kv_budget(self, settings: Settings) -> int | None:
        """Bytes for KV and state, once the model is loaded; None: what settings and RAM say.

        Raises DeviceFull.
        """
        if self.device is None:
            return None
        free = self.device.free_bytes() - LEFT_BYTES
        if free <= 0:
            raise DeviceFull("the model leaves no GPU memory for KV")
        return min(settings.kv_mib << 20, free) if settings.kv_mib else free


def open_processor(pool: str, settings: Settings) -> Processor:
    """Raises DeviceAbsent, DeviceFull, DeviceLost."""
    if pool == "gpu" and settings.gpu == "auto":
        from kernels.cuda.device import device_ops, open_device

        device = open_device()
        return Processor(device_ops(device), device)
    if pool == "gpu" and settings.gpu == "emulate":
        from kernels.cuda.emulate.device import open_emulated
        from kernels.cuda.host import CudaOps

        emulated = open_emulated()
        return Processor(CudaOps(emulated), emulated)
    from kernels.cpu.host import CpuOps

    return Processor(CpuOps(settings.num_threads))
