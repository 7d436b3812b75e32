"""A model's text side without its weights, and a door; tokenizer and template are a real file's."""

from pathlib import Path

import pytest
from gguf import GGUFReader

from router.admit import Door
from workers.address import parse_networks
from workers.text.text_model import TextModel
from workers.text.vocabulary import build_tokenizer, text_card

TINY_LLAMA = Path(__file__).parents[1] / "golden" / "tiny_llama.Q4_0.gguf"
NOW_MS = 1_800_000_000_000
CONTEXT = 128


@pytest.fixture(scope="session")
def text() -> TextModel:
    """tiny-llama: 512 tokens, ChatML, and a context short enough to be exceeded in a test."""
    fields = {name: field.contents() for name, field in GGUFReader(TINY_LLAMA).fields.items()}
    card = {
        "context_length": CONTEXT,
        "vocab_size": 512,
        "weights_digest": "00",
        "text": text_card(fields, 512),
    }
    return TextModel("tiny-llama", card, build_tokenizer(fields))


@pytest.fixture(scope="session")
def door(text) -> Door:
    return Door(text=text, now_ms=NOW_MS, allow=parse_networks("127.0.0.0/8"))
