"""Every tiny model gives the recorded logits, greedy run and state (tests/golden/README.md)."""

import numpy as np
import pytest

from kernels.cpu.host import CpuOps
from kernels.reference import ReferenceOps
from tests.workers.conftest import TINY
from tests.workers.model.drive import alone, run, state_arena
from workers.model import catalog
from workers.model.build import PACK, load_model
from workers.model.pack import Weights

OPS = {"reference": ReferenceOps, "cpu": lambda: CpuOps(2)}
TIE = 0.5  # two logits nearer than this may change places by 8-bit activations
WITH_STATE = "tiny_qwen35"
WITH_MTP = "tiny_qwen35_mtp_q6kout"
LONG = [name for name in TINY if name != WITH_MTP]


@pytest.fixture(scope="module")
def load(tiny_home):
    """A function that loads a tiny model for steps of 256 tokens."""

    def from_home(name, ops):
        folder = catalog.folder_of(tiny_home, name)
        return load_model(folder, ops, max_step_tokens=256, max_logit_rows=256)

    return from_home


def distances(actual, expected):
    """Relative L2 distance of each position."""
    return np.linalg.norm(actual - expected, axis=1) / np.linalg.norm(expected, axis=1)


def margins(logits):
    """Best logit minus the second best, of each position."""
    best = np.sort(logits, axis=1)
    return best[:, -1] - best[:, -2]


def facts_of(golden, name):
    """(ids, logits) of the 56 recorded positions."""
    facts = golden(f"{name}.npz")
    full = "full_" if "full_ids" in facts else ""
    return facts[f"{full}ids"], facts[f"{full}logits"]


@pytest.mark.parametrize("ops", OPS)
@pytest.mark.parametrize("name", TINY)
def test_logits_are_near_the_recorded_ones(load, golden, name, ops):
    """The tolerances of golden/README.md for 8-bit activations."""
    ids, expected = facts_of(golden, name)
    actual = run(load(name, OPS[ops]()), [ids], alone(len(ids), 40))[0]
    apart = distances(actual, expected)
    assert apart.max() < 0.10
    assert apart.mean() < 0.04
    differs = actual.argmax(1) != expected.argmax(1)
    assert (margins(expected)[differs] < TIE).all()
    assert differs.mean() <= 0.1


@pytest.mark.parametrize("name", LONG)
def test_a_long_prompt_keeps_its_logits(load, golden, name):
    """200 tokens: three stripes of keys, and twelve windows of gemma3's local layers."""
    facts = golden(f"{name}.npz")
    actual = run(load(name, CpuOps(2)), [facts["long_ids"]], alone(200))[0]
    assert distances(actual[-8:], facts["long_logits_last8"]).max() < 0.10
    differs = actual.argmax(1) != facts["long_argmax"]
    assert differs.mean() <= 0.1
    assert (margins(actual)[differs] < TIE).all()


@pytest.mark.parametrize("name", LONG)
def test_greedy_goes_the_recorded_way_while_its_margin_is_clear(load, golden, name):
    facts = golden(f"{name}.npz")
    num_prompt = len(facts["prompt_ids"])
    steps = alone(56, num_prompt, *[1] * 15)
    actual = run(load(name, CpuOps(2)), [facts["full_ids"]], steps)[0][num_prompt - 1 : -1]
    clear = np.cumprod(margins(facts["full_logits"])[num_prompt - 1 : -1] > TIE).sum()
    best = actual.argmax(1)
    np.testing.assert_array_equal(best[:clear], facts["greedy_ids"][:clear])
    behind = actual.max(1) - actual[np.arange(16), facts["greedy_ids"]]
    assert behind.max() < TIE


@pytest.mark.parametrize("ops", OPS)
@pytest.mark.parametrize("chunks", [(), (1,) * 39, (3, 20)])
def test_state_after_the_prompt_is_the_recorded_one(load, golden, ops, chunks):
    facts = golden(f"{WITH_STATE}.npz")
    ids = facts["prompt_ids"]
    model = load(WITH_STATE, OPS[ops]())
    state = state_arena(model.config, 1)
    run(model, [ids], alone(len(ids), *chunks), state)
    delta = facts["recurrent_state_after_prompt"].swapaxes(-1, -2)  # ours: k is contiguous
    conv = facts["conv_state_after_prompt"].swapaxes(-1, -2)  # ours: a row for each token
    for actual, expected in ((state.delta[0], delta), (state.conv[0], conv)):
        assert actual.shape == expected.shape
        for mine, recorded in zip(actual, expected, strict=True):
            assert np.linalg.norm(mine - recorded) / np.linalg.norm(recorded) < 0.06


def test_blocks_that_guess_further_are_kept_and_change_nothing(load, tiny_home):
    """The same main weights with and without; only the head's type differs."""
    weights = Weights.open(catalog.folder_of(tiny_home, WITH_MTP) / PACK)
    assert (weights.config.num_layers, weights.config.num_mtp_layers) == (4, 1)
    assert weights.matrix("blk.4.nextn.eh_proj.weight").cols == 2 * weights.config.hidden
    assert weights.vector("blk.4.nextn.shared_head_norm.weight").size == weights.config.hidden
    assert weights.has("blk.4.attn_q.weight")
    ids = list(range(40, 90))
    with_mtp = run(load(WITH_MTP, CpuOps(1)), [ids], alone(50))[0]
    without = run(load(WITH_STATE, CpuOps(1)), [ids], alone(50))[0]
    assert 0 < distances(with_mtp, without).max() < 0.02


def test_only_layers_that_attend_keep_kv(load):
    config = load(WITH_STATE, ReferenceOps()).config
    assert config.kinds == ("linear", "linear", "linear", "full")
    assert (config.num_kv_layers, config.state.num_linear_layers) == (1, 3)
    assert load("tiny_gemma3", ReferenceOps()).config.num_kv_layers == 6
