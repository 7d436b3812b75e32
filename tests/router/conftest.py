"""A model's text side without its weights, and a door; tokenizer and template are a real file's."""

import json
from pathlib import Path

import pytest
from gguf import GGUFReader

from router.admit import Door
from workers.address import parse_networks
from workers.text.text_model import TextModel
from workers.text.vocabulary import build_tokenizer, text_card
from workers.wire import Keys, PoolLoad
from workers.worker_store import WorkerStore

TINY_LLAMA = Path(__file__).parents[1] / "golden" / "tiny_llama.Q4_0.gguf"
NOW_MS = 1_800_000_000_000
CONTEXT = 128


MODEL = "tiny-llama"


@pytest.fixture(scope="session")
def text_home(tmp_path_factory) -> Path:
    """A LOCKSTEP_HOME with the text side of tiny-llama: 512 tokens, a very short context."""
    home = tmp_path_factory.mktemp("home")
    folder = home / "models" / MODEL
    folder.mkdir(parents=True)
    fields = {name: field.contents() for name, field in GGUFReader(TINY_LLAMA).fields.items()}
    card = {
        "context_length": CONTEXT,
        "vocab_size": 512,
        "weights_digest": "00",
        "text": text_card(fields, 512),
    }
    (folder / "card.json").write_text(json.dumps(card))
    build_tokenizer(fields).save(str(folder / "tokenizer.json"))
    return home


@pytest.fixture(scope="session")
def text(text_home) -> TextModel:
    return TextModel.load(text_home / "models" / MODEL)


@pytest.fixture(scope="session")
def door(text) -> Door:
    return Door(text=text, now_ms=NOW_MS, allow=parse_networks("127.0.0.0/8"))


@pytest.fixture
def store(redis_url) -> WorkerStore:
    return WorkerStore(redis_url, Keys("t"), lease_s=1.0)


@pytest.fixture
def report(store):
    """Says in a pool's name how it is."""

    def say(pool="cpu", state="ready", capacity=16, blocks=4, to=store) -> None:
        load = PoolLoad(
            pool=pool,
            worker=pool,
            state=state,
            model=MODEL,
            capacity=capacity,
            total_blocks=blocks,
        )
        to.report(load)
        to.redis.persist(to.keys.pool(pool, pool))  # it lives however long a test takes

    return say
