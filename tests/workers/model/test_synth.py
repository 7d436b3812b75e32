"""Random models have true shapes, the same bytes each time, and sensible weights."""

import json

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type
from gguf import GGUFReader, quants

from ingest.command.main import run
from kernels.reference import ReferenceOps
from tests.workers.model.drive import alone
from tests.workers.model.drive import run as forward
from workers.model import catalog, synth
from workers.model.build import load_model
from workers.model.config import BadModel
from workers.model.gguf_file import GgufFile
from workers.settings import settings
from workers.text.text_model import TextModel

SHAPES = {
    "tiny": synth._plain("llama", "smollm", 512, 1e4, 2, 512, 64, 96, 4, 2),
    "tiny-qwen2": synth._plain("qwen2", "qwen2", 512, 1e4, 2, 512, 64, 96, 4, 2),
}


@pytest.fixture(autouse=True)
def shapes(monkeypatch):
    for name, like in SHAPES.items():
        monkeypatch.setitem(synth.LIKES, name, like)


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("LOCKSTEP_HOME", str(tmp_path / "home"))
    settings.cache_clear()
    yield tmp_path / "home"
    settings.cache_clear()


def no_progress(*_):
    pass


@pytest.mark.parametrize(
    ("name", "parameters", "tensors"),
    [
        ("qwen3.5-27b", 26_895_998_464, 851),  # the text stack, as published
        ("qwen3.5-0.8b", 752_393_024, 320),
        ("qwen2.5-1.5b", 1_543_714_304, 338),
        ("smollm2-135m", 134_515_008, 272),
    ],
)
def test_a_shape_is_the_published_one(name, parameters, tensors):
    file = synth.made(name, 0)
    sizes = [np.prod(t.shape, dtype=np.int64) for t in file.tensors.values()]
    assert (sum(sizes), len(sizes)) == (parameters, tensors)


def test_the_27b_takes_the_bytes_of_its_pure_q4_0_file():
    """Tensors alone: the file has metadata and padding beside them."""
    assert sum(t.num_bytes for t in synth.made("27b", 0).tensors.values()) == 15_138_093_056


@pytest.mark.parametrize("name", SHAPES)
def test_a_file_and_a_pack_are_the_same_model(home, tmp_path, name):
    path = tmp_path / "file.gguf"
    synth.write(synth.made(name, 7), path, no_progress)
    catalog.add(path, "of-file", home, None)
    catalog.add_synth(name, 7, "packed", home, None)
    catalog.add_synth(name, 8, "other", home, None)
    digests = [catalog.card_of(home, n)["weights_digest"] for n in ("of-file", "packed", "other")]
    assert digests[0] == digests[1] != digests[2]


def test_any_piece_of_a_tensor_is_what_the_whole_says():
    blocks = synth.Blocks("blk.0.ffn_up.weight", (64, 32 * 2048), 3)
    whole = blocks.read(0, 64 * 2048 * 18)
    edge = synth.CELL_BLOCKS * synth.BLOCK_BYTES
    for begin, size in ((0, 10), (edge - 5, 10), (edge, edge), (edge + 18, 3 * edge)):
        np.testing.assert_array_equal(blocks.read(begin, size), whole[begin : begin + size])


@pytest.mark.parametrize(("kind", "block_bytes"), [(Type.Q4_0, 18), (Type.Q8_0, 34)])
def test_weights_are_centred_and_as_wide_as_they_should_be(kind, block_bytes):
    blocks = synth.Blocks("blk.0.ffn_up.weight", (256, 1024), 1, kind)
    raw = blocks.read(0, 256 * 32 * block_bytes)
    values = quants.dequantize(raw.reshape(256, -1), kind)
    assert abs(values.mean()) < 0.01 / 32
    assert values.std() == pytest.approx(1 / 32, rel=0.05)


def test_the_gguf_package_reads_the_file(tmp_path):
    path = tmp_path / "file.gguf"
    file = synth.made("tiny", 1)
    synth.write(file, path, no_progress)
    for tensor in GGUFReader(path).tensors:
        ours = file.tensors[tensor.name]
        np.testing.assert_array_equal(
            tensor.data.reshape(-1).view(np.uint8), ours.source.read(0, ours.num_bytes)
        )
    assert GgufFile(path).fields.items() >= file.fields.items()


@pytest.mark.parametrize("name", SHAPES)
def test_a_random_model_answers(home, name):
    """Logits are finite and neither flat nor wild."""
    folder = catalog.add_synth(name, 1, "tiny", home, None)
    text = TextModel.load(folder)
    ids = text.render([{"role": "user", "content": "Good day, é!"}])
    model = load_model(folder, ReferenceOps(), max_step_tokens=64, max_logit_rows=64)
    (logits,) = forward(model, [ids], alone(len(ids)))
    assert 0.5 < logits.std() < 8
    assert text.token_bytes(300) == b" w300"
    assert text.end_ids == {509, 511}


def test_a_pack_of_another_layout_is_made_again_without_a_file(home):
    folder = catalog.add_synth("tiny", 5, "tiny", home, None)
    whole = (folder / "weights.pack").read_bytes()
    (folder / "weights.pack").write_bytes(b"damaged")
    catalog.ensure(home, "tiny", None)
    assert (folder / "weights.pack").read_bytes() == whole


def test_an_unknown_shape_is_refused(home):
    with pytest.raises(BadModel, match=r"no shape '7b', only qwen3\.5-27b"):
        catalog.add_synth("7b", 0, "x", home, None)
    assert not list((home / "models").glob("*/*"))


def test_a_full_disk_leaves_no_half_file(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(synth, "_write_tensors", full)
    with pytest.raises(BadModel, match=r"file.gguf cannot be written: No space left"):
        synth.write(synth.made("tiny", 1), tmp_path / "file.gguf", no_progress)
    assert list(tmp_path.iterdir()) == []


def test_the_command_writes_a_file_or_a_model(home, tmp_path, capsys):
    path = str(tmp_path / "tiny.gguf")
    assert run(["model", "synth", path, "--like", "tiny", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["path"] == path
    assert run(["model", "synth", "--like", "tiny", "--pack", "--seed", "3", "--json"]) == 0
    added = json.loads(capsys.readouterr().out)
    assert added["name"] == "synth-tiny"
    assert added["source"] == "lockstep model synth --like tiny --seed 3"
    assert run(["model", "synth", "--like", "tiny"]) == 2
    assert "either PATH.gguf or --pack" in capsys.readouterr().err
