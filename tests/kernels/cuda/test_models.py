"""Law one across processors: every tiny model gives the same logits on the GPU's kernels.

The kernels run emulated, on the CPU. The prompt comes in one piece, cut, and beside another
sequence, so that every kernel has its turn.
"""

import numpy as np
import pytest

from kernels.cpu.host import CpuOps
from kernels.cuda.emulate.host import emulated_ops
from tests.kernels.cases import same_bits
from tests.workers.conftest import GOLDEN, TINY, tiny_home
from tests.workers.model.drive import alone, run, state_arena
from workers.model import catalog
from workers.model.build import load_model

__all__ = ["tiny_home"]  # a fixture
NUM_TOKENS = 100  # of the prompt: the tiles of many tokens begin after 64
BESIDE = list(range(50, 57))
WAYS = {  # steps, and the order in which a block's threads run
    "whole": (alone(NUM_TOKENS), "forward"),
    "cut": (alone(NUM_TOKENS, 70, 3, 9), "shuffled"),
    "beside": (
        [[(0, 60), (1, 2)], [(0, 38), (1, 3)], [(1, 1), (0, 1)], [(0, 1), (1, 1)]],
        "backward",
    ),
}


@pytest.fixture(scope="module", params=TINY)
def model(request, tiny_home):
    """A function that loads this model for some ops, and its sequences."""
    ids = np.load(GOLDEN / f"{request.param}.npz")
    prompt = ids["long_ids" if "long_ids" in ids else "ids"].tolist()
    sequences = [(prompt * NUM_TOKENS)[:NUM_TOKENS], BESIDE]

    def load(ops):
        folder = catalog.folder_of(tiny_home, request.param)
        return load_model(folder, ops, max_step_tokens=128, max_logit_rows=128)

    return load, sequences


@pytest.mark.parametrize("way", WAYS)
def test_the_gpu_gives_the_bits_of_the_cpu(model, way):
    (load, sequences), (steps, order) = model, WAYS[way]
    used = sequences if way == "beside" else sequences[:1]
    results = []
    for ops in (CpuOps(2), emulated_ops(order)):
        loaded = load(ops)
        state = state_arena(loaded.config, len(used))
        results.append((run(loaded, used, steps, state), state))
    (expected, of_cpu), (actual, of_gpu) = results
    for one, other in zip(expected, actual, strict=True):
        same_bits(one, other)
    if of_cpu is not None:
        same_bits(of_cpu.conv, of_gpu.conv)
        same_bits(of_cpu.delta, of_gpu.delta)
