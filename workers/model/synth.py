"""Models of true shapes with random weights, so that speed and memory are measured without a file.

    metadata   of the model it is like
    tokens     256 bytes, words " w256", " w257", ..., control tokens: any text can be a prompt
    matrices   Q4_0 (or Q8_0): any quants, and scales of either sign, so that weights have a
               deviation of 1 / sqrt(columns), and activations stay near 1
    vectors    float32, near what training leaves

Weights are made when they are read, a grid cell at a time, each from its own seed: the same model,
seed and tensor give the same bytes, in whatever pieces and by however many threads.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from io import BufferedWriter
from math import prod, sqrt
from pathlib import Path
from typing import Any, Final
from zlib import crc32

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType as Type
from gguf import GGUFValueType, GGUFWriter

from kernels.ops import F32, QUANT_BLOCK, U8
from workers.model.build import architecture_of
from workers.model.config import BadModel
from workers.model.gguf_file import Expected, GgufFile, GgufTensor
from workers.model.pack import Progress
from workers.text.text_model import ALPHABET

BLOCK_BYTES: Final = 18  # of Q4_0: scale f16, 16 bytes of two nibbles
QUANT_BYTES: Final = {Type.Q4_0: 16, Type.Q8_0: 32}  # of a block, behind its scale f16
DEVIATION: Final = {Type.Q4_0: 4.61, Type.Q8_0: 73.9}  # of quants, all equally likely
CELL_BLOCKS: Final = 1 << 14  # blocks that come of one seed
PIECE_BYTES: Final = CELL_BLOCKS * BLOCK_BYTES * 8  # written at once
ALIGNMENT: Final = 32
CONTROL: Final = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TEMPLATE: Final = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


@dataclass(frozen=True, slots=True)
class Like:
    """The shape of a published model.   keys: GGUF's, without the architecture's name"""

    architecture: str
    pre: str
    vocab_size: int
    is_tied: bool
    keys: Mapping[str, Any]


def _qwen35(layers: int, hidden: int, ffn: int, heads: int, v_heads: int, is_tied: bool) -> Like:
    """One size of Qwen3.5: heads of 256."""
    kv_heads = {8: 2, 16: 4, 24: 4}[heads]
    keys = {
        "block_count": layers,
        "context_length": 262144,
        "embedding_length": hidden,
        "feed_forward_length": ffn,
        "attention.head_count": heads,
        "attention.head_count_kv": kv_heads,
        "attention.key_length": 256,
        "attention.value_length": 256,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "rope.freq_base": 1e7,
        "rope.dimension_count": 64,
        "rope.dimension_sections": [11, 11, 10, 0],
        "full_attention_interval": 4,
        "ssm.conv_kernel": 4,
        "ssm.group_count": 16,
        "ssm.time_step_rank": v_heads,
        "ssm.state_size": 128,
        "ssm.inner_size": 128 * v_heads,
    }
    return Like("qwen35", "qwen35", 248320, is_tied, keys)


def _plain(architecture: str, pre: str, vocab_size: int, theta: float, *sizes: int) -> Like:
    """A tied decoder.   sizes: layers, context, hidden, ffn, heads, KV heads"""
    names = ["block_count", "context_length", "embedding_length", "feed_forward_length"]
    names += ["attention.head_count", "attention.head_count_kv"]
    eps = {"attention.layer_norm_rms_epsilon": 1e-6 if architecture == "qwen2" else 1e-5}
    keys = dict(zip(names, sizes, strict=True)) | eps | {"rope.freq_base": theta}
    return Like(architecture, pre, vocab_size, True, keys)


LIKES: Final[dict[str, Like]] = {
    "qwen3.5-27b": _qwen35(64, 5120, 17408, 24, 48, is_tied=False),
    "qwen3.5-9b": _qwen35(32, 4096, 12288, 16, 32, is_tied=False),
    "qwen3.5-4b": _qwen35(32, 2560, 9216, 16, 32, is_tied=True),
    "qwen3.5-0.8b": _qwen35(24, 1024, 3584, 8, 16, is_tied=True),
    "qwen2.5-1.5b": _plain("qwen2", "qwen2", 151936, 1e6, 28, 32768, 1536, 8960, 12, 2),
    "smollm2-135m": _plain("llama", "smollm", 49152, 1e5, 30, 8192, 576, 1536, 9, 3),
}


def like_of(name: str) -> Like:
    """Raises BadModel. The sizes of Qwen3.5 are known by their size alone, too."""
    like = LIKES.get(name) or LIKES.get(f"qwen3.5-{name}")
    if like is None:
        raise BadModel(f"there is no shape {name!r}, only {', '.join(LIKES)}")
    return like


def made(name: str, seed: int, type: Type = Type.Q4_0) -> GgufFile:
    """The model as if its file had been opened. Raises BadModel.   type: of matrices"""
    return made_like(like_of(name), name, seed, type)


def made_like(like: Like, name: str, seed: int, type: Type = Type.Q4_0) -> GgufFile:
    """The same of any shape. Raises BadModel when it is none.   name: what it is like"""
    fields = {
        "general.architecture": like.architecture,
        "general.name": f"random weights like {name}, seed {seed}",
        **{f"{like.architecture}.{key}": _as_stored(v) for key, v in like.keys.items()},
        **_tokenizer(like),
    }
    architecture = architecture_of(like.architecture)
    expected = architecture.tensors(architecture.config(fields, like.vocab_size))
    wanted = [e for e in expected if not e.is_optional or _is_wanted(e, like)]
    return GgufFile.made(fields, [_tensor(e, seed, type) for e in wanted])


def _as_stored(value: Any) -> Any:
    """GGUF keeps floats as float32: a file and what lies in none are the same model."""
    return float(np.float32(value)) if isinstance(value, float) else value


def write(file: GgufFile, path: Path, progress: Progress) -> None:
    """The same model as a GGUF file; there only when it is whole. Raises BadModel."""
    part = path.with_name(path.name + ".part")
    writer = GGUFWriter(None, file.architecture)
    for key, value in file.fields.items():
        if key != "general.architecture":
            writer.add_key_value(key, value, *_value_types(value))
    for tensor in file.tensors.values():
        args = (np.dtype(np.float32), tensor.num_bytes)
        writer.add_tensor_info(tensor.name, tensor.shape, *args, raw_dtype=tensor.type)
    try:
        writer.write_header_to_file(part)
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        assert writer.fout is not None
        _write_tensors(writer.fout[0], list(file.tensors.values()), progress)
        writer.close()
        part.rename(path)
    except OSError as error:
        raise BadModel(f"{path} cannot be written: {error.strerror}") from error
    finally:
        part.unlink(missing_ok=True)


def _write_tensors(file: BufferedWriter, tensors: list[GgufTensor], progress: Progress) -> None:
    total, done = sum(t.num_bytes for t in tensors), 0
    for tensor in tensors:
        file.write(bytes(-file.tell() % ALIGNMENT))
        for begin in range(0, tensor.num_bytes, PIECE_BYTES):
            progress(f"writing {tensor.name}", done, total)
            data = tensor.source.read(begin, min(PIECE_BYTES, tensor.num_bytes - begin))
            file.write(data.data)
            done += data.nbytes
    file.write(bytes(-file.tell() % ALIGNMENT))
    progress("written", total, total)


def _value_types(value: Any) -> tuple[GGUFValueType, GGUFValueType | None]:
    """How GGUF writes it, and the elements of a list."""
    if isinstance(value, list):
        return GGUFValueType.ARRAY, GGUFValueType.get_type(value[0])
    if isinstance(value, int) and not isinstance(value, bool):
        return GGUFValueType.UINT32, None  # llama.cpp refuses a size that is signed
    return GGUFValueType.get_type(value), None


def _tokenizer(like: Like) -> dict[str, Any]:
    """A working one: any text becomes bytes; what the model says reads as words."""
    num_words = like.vocab_size - 256 - len(CONTROL)
    tokens = [
        *sorted(ALPHABET, key=ALPHABET.__getitem__),
        *(f"Ġw{256 + i}" for i in range(num_words)),
        *CONTROL,
    ]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": like.pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1] * (256 + num_words) + [3] * len(CONTROL),
        "tokenizer.ggml.merges": ["Ġ w"],  # llama.cpp wants some; this one leads to no token
        "tokenizer.ggml.eos_token_id": like.vocab_size - 1,
        "tokenizer.ggml.padding_token_id": like.vocab_size - len(CONTROL),
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": TEMPLATE,
    }


def _is_wanted(expected: Expected, like: Like) -> bool:
    return expected.name == "output.weight" and not like.is_tied


def _tensor(expected: Expected, seed: int, type: Type) -> GgufTensor:
    name, shape = expected.name, expected.shape
    if len(shape) == 2 and shape[1] % QUANT_BLOCK == 0:
        return GgufTensor(name, type, shape, Blocks(name, shape, seed, type))
    return GgufTensor(name, Type.F32, shape, Floats(name, shape, seed))


def _generator(name: str, seed: int, cell: int) -> np.random.SFC64:
    return np.random.SFC64([seed, crc32(name.encode()), cell])


class Blocks:
    """The Source of a matrix."""

    def __init__(
        self, name: str, shape: tuple[int, ...], seed: int, type: Type = Type.Q4_0
    ) -> None:
        self._name, self._seed, self._quants = name, seed, QUANT_BYTES[type]
        self._num_blocks = prod(shape) // QUANT_BLOCK
        self._scale = _gain(name) / (DEVIATION[type] * sqrt(shape[1]))

    def read(self, begin: int, num_bytes: int) -> U8:
        cell_bytes = CELL_BLOCKS * (2 + self._quants)
        first, last = begin // cell_bytes, -(-(begin + num_bytes) // cell_bytes)
        cells = np.concatenate([self._cell(index) for index in range(first, last)])
        at = begin - first * cell_bytes
        return cells[at : at + num_bytes]

    def _cell(self, index: int) -> U8:
        """(blocks * block bytes,) of one seed."""
        random = _generator(self._name, self._seed, index)
        blocks = np.empty((CELL_BLOCKS, 2 + self._quants), np.uint8)
        raw = random.random_raw(CELL_BLOCKS * self._quants // 8).view(np.uint8)
        blocks[:, 2:] = raw.reshape(-1, self._quants)
        signed = random.random_raw(CELL_BLOCKS // 4).view(np.int16).astype(np.float32)
        sizes = np.copysign(0.75 + abs(signed) / 65536, signed) * np.float32(self._scale)
        blocks[:, :2] = sizes.astype("<f2").view(np.uint8).reshape(-1, 2)
        return blocks.reshape(-1)


class Floats:
    """The Source of a vector, or of a matrix that is not quantised: small, made at once."""

    def __init__(self, name: str, shape: tuple[int, ...], seed: int) -> None:
        self._name, self._shape, self._seed = name, shape, seed

    def read(self, begin: int, num_bytes: int) -> U8:
        random = np.random.Generator(_generator(self._name, self._seed, 0))
        values = _law_of(self._name)(random, prod(self._shape)).astype("<f4")
        return values.view(np.uint8)[begin : begin + num_bytes]


def _gain(name: str) -> float:
    """Logits spread wider than activations; what is added to the residual stream, less."""
    if name in ("output.weight", "token_embd.weight"):
        return 2.5
    return 0.5 if name.split(".")[-2] in ("attn_output", "ssm_out", "ffn_down") else 1.0


Law = Callable[[np.random.Generator, int], npt.NDArray[np.float64] | F32]


def _law_of(name: str) -> Law:
    """How a vector's values lie, by what it is for."""
    if name.endswith("ssm_a"):
        return lambda random, size: -random.uniform(1, 16, size)
    if name.endswith("ssm_dt.bias"):
        return lambda random, size: random.uniform(-6, -3, size)
    if name.endswith("ssm_conv1d.weight"):
        return lambda random, size: random.normal(0, 0.5, size)
    if name.endswith(".bias"):
        return lambda random, size: random.normal(0, 0.1, size)
    return lambda random, size: random.uniform(0.8, 1.2, size)
