"""The graph follows the specification, and a token's bits depend on its own past alone."""

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.cpu.host import CpuOps
from kernels.ops import Step
from kernels.reference import ReferenceOps
from tests.workers.model.drive import alone, kv_arena, run, state_arena
from tests.workers.model.exact import exact_logits
from tests.workers.model.small_gguf import VOCAB, Small, write_gguf
from tests.workers.model.small_models import Sizes, write_small
from workers.model import catalog
from workers.model.build import load_model

OPS = {"reference": ReferenceOps, "cpu": lambda: CpuOps(2)}
TIE = 0.5  # two logits nearer than this may change places by 8-bit activations


@pytest.fixture(scope="session")
def load(tiny_home):
    """A function that loads a tiny model for steps of 256 tokens."""

    def from_home(name, ops):
        folder = catalog.folder_of(tiny_home, name)
        return load_model(folder, ops, max_step_tokens=256, max_logit_rows=256)

    return from_home


@pytest.fixture(scope="session")
def default_model(model_home):
    folder = catalog.folder_of(model_home, "smollm2-135m")
    return load_model(folder, CpuOps(2), max_step_tokens=256, max_logit_rows=256)


def distances(actual, expected):
    """Relative L2 distance of each position."""
    return np.linalg.norm(actual - expected, axis=1) / np.linalg.norm(expected, axis=1)


def margins(logits):
    """Best logit minus the second best, of each position."""
    best = np.sort(logits, axis=1)
    return best[:, -1] - best[:, -2]


def test_the_default_model_goes_the_recorded_ways(default_model, golden):
    """Along each recorded run: the same token where the margin is clear, else one near the best."""
    for chat in golden("smollm2_greedy.json")["chats"]:
        runs = (("exact_greedy_ids", "exact_margins"), ("greedy_ids", "margins"))
        for ids, margin in ((chat[ids], np.array(chat[margin])) for ids, margin in runs):
            tokens = chat["prompt_ids"] + ids
            logits = run(default_model, [tokens[:-1]], alone(len(tokens) - 1))[0][-len(ids) :]
            behind = logits.max(axis=1) - logits[np.arange(len(ids)), ids]
            assert (behind[margin > TIE] == 0).all()
            assert behind.max() < TIE


EXACT = {
    "bias, untied": Small(has_biases=True, is_tied=False, seed=2),
    "q wider than hidden": Small(heads=6, kv_heads=3, head_dim=32, seed=3),
    "one kv head": Small(kv_heads=1, seed=4),
    "q4_0": Small(type=Type.Q4_0, seed=5),
    "q4_1": Small(type=Type.Q4_1, seed=6),
    "mixed": Small(types={"attn_v": Type.Q4_0, "ffn_down": Type.Q4_1, "token_embd": Type.F16}),
}


@pytest.mark.parametrize("ops", OPS)
@pytest.mark.parametrize("case", EXACT)
def test_logits_follow_the_specification(tmp_path, case, ops):
    """Against float64: 8-bit activations cost such small models 2 to 5 %, a wrong graph 100 %."""
    path = write_gguf(tmp_path / "small.gguf", EXACT[case])
    ids = np.random.default_rng(0).integers(0, VOCAB, 70).tolist()
    folder = catalog.add(path, "small", tmp_path / "home", progress=None)
    model = load_model(folder, OPS[ops](), max_step_tokens=70, max_logit_rows=70)
    apart = distances(run(model, [ids], alone(70))[0], exact_logits(path, ids))
    assert apart.mean() < 0.08


FLOAT = {
    "gemma3": ("gemma3", Sizes(layers=7)),
    "gemma3, every third sees all, scaled": (
        "gemma3",
        Sizes(
            layers=4,
            keys={
                "attention.sliding_window_pattern": 3,
                "rope.scaling.type": "linear",
                "rope.scaling.factor": 8.0,
            },
        ),
    ),
    "gemma3, flags say which": (
        "gemma3",
        Sizes(layers=3, keys={"attention.sliding_window_pattern": [False, True, False]}),
    ),
    "llama": ("llama", Sizes(is_tied=False, keys={"attention.scale": 0.2})),
    "qwen2": ("qwen2", Sizes(kv_heads=1)),
    "qwen3": ("qwen3", Sizes(heads=3, kv_heads=3, head_dim=24)),
    "qwen35": ("qwen35", Sizes(layers=8, is_tied=False)),
    "qwen35, every second is full": (
        "qwen35",
        Sizes(k_heads=1, v_heads=3, keys={"full_attention_interval": 2}),
    ),
    "qwen35, as many heads of k as of v": ("qwen35", Sizes(k_heads=3, v_heads=3, state_dim=16)),
}


@pytest.mark.parametrize("ops", OPS)
@pytest.mark.parametrize("case", FLOAT)
def test_a_model_whose_rows_stay_float_is_exact(tmp_path, case, ops):
    """No width is a multiple of 32, so no activation has 8 bits, and no error can hide."""
    path = write_small(tmp_path / "small.gguf", *FLOAT[case])
    ids = np.random.default_rng(0).integers(0, VOCAB, 70).tolist()
    folder = catalog.add(path, "small", tmp_path / "home", progress=None)
    model = load_model(folder, OPS[ops](), max_step_tokens=70, max_logit_rows=70)
    apart = distances(run(model, [ids], alone(70, 33))[0], exact_logits(path, ids))
    assert apart.max() < 1e-3 and apart.mean() < 1e-4  # K or V may round to the next float16


@settings(max_examples=15)
@given(data=st.data())
@pytest.mark.parametrize(
    "name", ["tiny_gemma3", "tiny_llama", "tiny_qwen2", "tiny_qwen3", "tiny_qwen35"]
)
def test_bits_do_not_depend_on_chunks_company_or_threads(load, golden, name, data):
    """Alone in one step on one thread, and cut anywhere, beside others, on several threads."""
    ids = golden(f"{name}.npz")["long_ids"]
    model = load(name, CpuOps(1))
    alone_state = state_arena(model.config, 1)
    expected = run(model, [ids], alone(len(ids)), alone_state)[0]
    others = data.draw(st.lists(st.integers(1, 60), max_size=4), label="lengths of the others")
    sequences = [ids, *([7 * n + i for i in range(n)] for n in others)]
    sequences = [[int(token) % 490 for token in s] for s in sequences]
    threads = data.draw(st.integers(1, 4), label="threads")
    steps = data.draw(plans([len(s) for s in sequences]), label="steps")
    state = state_arena(model.config, len(sequences))
    actual = run(load(name, CpuOps(threads)), sequences, steps, state)[0]
    np.testing.assert_array_equal(actual.view(np.uint32), expected.view(np.uint32))
    if state is not None:
        for mine, judged in ((state.delta, alone_state.delta), (state.conv, alone_state.conv)):
            np.testing.assert_array_equal(mine[0].view(np.uint32), judged[0].view(np.uint32))


@st.composite
def plans(draw, lengths):
    """Steps of at most 256 tokens that together hold all tokens of all sequences."""
    left, steps = list(lengths), []
    while any(left):
        parts, room = [], 256
        for sequence in draw(st.permutations([i for i, n in enumerate(left) if n])):
            most = min(left[sequence], room)
            count = draw(st.integers(0 if parts else 1, most)) if most else 0
            if count:
                parts.append((sequence, count))
                left[sequence] -= count
                room -= count
        steps.append(parts)
    return steps


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_the_default_models_bits_do_not_depend_on_threads_or_chunks(
    default_model, model_home, threads
):
    folder = catalog.folder_of(model_home, "smollm2-135m")
    ids = [(37 * i) % 49152 for i in range(70)]
    expected = run(default_model, [ids], alone(70))[0]
    model = load_model(folder, CpuOps(threads), max_step_tokens=70, max_logit_rows=70)
    actual = run(model, [ids], alone(70, 1, 31, 32, 1))[0]
    np.testing.assert_array_equal(actual.view(np.uint32), expected.view(np.uint32))


class Stop(Exception):
    """Raised between layers, as a pool does that must stop."""


def one_token(logit_rows):
    zero = np.zeros(1, np.int32)
    rows = np.array(logit_rows, np.int32)
    return Step(zero, zero, zero, np.zeros(1, np.int64), np.zeros((1, 1), np.int32), rows, zero)


def test_after_each_layer_somebody_is_told(load):
    model, told = load("tiny_llama", CpuOps(1)), []
    model.forward(one_token([0]), kv_arena(model.config, 1), None, lambda: told.append(1))
    assert len(told) == model.config.num_layers == 3


def test_an_abandoned_step_changes_no_later_bit(load):
    model = load("tiny_llama", CpuOps(1))
    kv = kv_arena(model.config, 1)
    expected = model.forward(one_token([0]), kv, None, lambda: None).copy()

    def stop():
        raise Stop

    with pytest.raises(Stop):
        model.forward(one_token([0]), kv, None, stop)
    np.testing.assert_array_equal(model.forward(one_token([0]), kv, None, lambda: None), expected)


def test_a_step_that_wants_no_logits_gives_none(load):
    model = load("tiny_llama", CpuOps(1))
    assert model.forward(one_token([]), kv_arena(model.config, 1), None, lambda: None).shape == (
        0,
        512,
    )


def test_a_step_larger_than_the_workspace_is_our_mistake(tiny_home):
    folder = catalog.folder_of(tiny_home, "tiny_llama")
    model = load_model(folder, CpuOps(1), max_step_tokens=4, max_logit_rows=4)
    with pytest.raises(AssertionError):
        run(model, [[1, 2, 3, 4, 5]], alone(5))
