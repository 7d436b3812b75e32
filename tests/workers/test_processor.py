"""What a pool may take of a device: all of it is reserved before the first step."""

from types import SimpleNamespace

import numpy as np
import pytest

from kernels.arrays import HOST, DeviceAbsent, DeviceFull
from kernels.cuda.device import GpuDevice
from kernels.cuda.emulate.build import library
from kernels.cuda.emulate.device import EmulatedDevice
from kernels.cuda.host import CudaOps
from tests.workers.engine.fake import make_request
from workers.engine.engine import Engine
from workers.engine.limits import block_bytes, limits_of, state_bytes
from workers.model.build import PACK
from workers.model.pack import Weights
from workers.processor import LEFT_BYTES, Processor, open_processor
from workers.settings import Settings
from workers.text.text_model import TextModel

MIB = 1 << 20


def emulated(memory_mib: int) -> Processor:
    device = EmulatedDevice(library(), settings=f"memory_mib={memory_mib}")
    return Processor(CudaOps(device), device)


def test_the_cpu_works_in_this_process_and_has_no_budget_of_its_own():
    processor = open_processor("cpu", Settings(threads=1))
    assert processor.arrays is HOST
    assert processor.kv_budget(Settings()) is None


def test_kv_gets_what_is_free_or_what_is_said():
    processor = emulated(300)
    assert processor.kv_budget(Settings()) == 44 * MIB
    assert processor.kv_budget(Settings(kv_mib=10)) == 10 * MIB
    assert processor.kv_budget(Settings(kv_mib=1000)) == 44 * MIB


def test_a_device_that_the_model_fills_is_too_small():
    processor = emulated(300)
    processor.arrays.reserve((50 * MIB,), np.uint8)
    with pytest.raises(DeviceFull, match="leaves no GPU memory"):
        processor.kv_budget(Settings())


class Refusing(GpuDevice):
    """A GPU whose blocks have too little shared memory for any model."""

    name, shared_bytes, is_closed = "a small GPU", 1 << 10, False

    def __init__(self):
        """Nothing is opened."""

    def close(self):
        self.is_closed = True


def test_a_gpu_that_cannot_take_the_model_is_given_back(tiny_home, monkeypatch):
    """The process stays, to say so: the weights that it uploaded must not."""
    folder = tiny_home / "models" / "tiny_llama"
    model = SimpleNamespace(config=Weights.open(folder / PACK).config)
    monkeypatch.setattr("workers.model.build.load_model", lambda *args, **named: model)
    processor = Processor(None, Refusing())
    with pytest.raises(DeviceAbsent, match="shared memory"):
        processor.load_model(folder, limits_of(Settings(), model.config), Settings())
    assert processor.device.is_closed


def test_nothing_is_reserved_after_the_start(tiny_home):
    """Weights, workspace, KV and state are the budget; a request takes nothing more."""
    folder = tiny_home / "models" / "tiny_qwen35"
    config = Weights.open(folder / PACK).config
    settings = Settings(max_batch=2, max_step_tokens=64)
    processor = emulated(LEFT_BYTES // MIB + 8)
    model = processor.load_model(folder, limits_of(settings, config), settings)
    limits = limits_of(settings, config, processor.kv_budget(settings))
    wanted = limits.num_blocks * block_bytes(config) + limits.state_slots * state_bytes(config)
    before = processor.device.free_bytes()
    engine = Engine(
        model, TextModel.load(folder), processor.ops, limits,
        after_layer=lambda: None, now_ms=lambda: 0, arrays=processor.arrays,
    )  # fmt: skip
    free = processor.device.free_bytes()
    assert LEFT_BYTES <= free <= before - wanted
    engine.add(make_request(token_ids=range(5, 45), max_tokens=3))
    while engine.has_work():
        engine.step()
    assert processor.device.free_bytes() == free
