"""A front door on a free port, over a real Valkey, with a stub in the place of router and pool."""

import contextlib
import json
import threading
import time
from pathlib import Path

import httpx
import openai
import pytest
import uvicorn

from ingest.__main__ import config_of
from ingest.desk import Desk
from tests.ingest.stub_node import StubNode
from workers.settings import Settings
from workers.text.text_model import CARD, TOKENIZER, TextModel

ROOT = Path(__file__).parents[2]
GGUF = ROOT / "tests" / "golden" / "tiny_llama.Q4_0.gguf"
MODEL = "tiny"


@pytest.fixture(scope="session")
def tiny_home(tmp_path_factory) -> Path:
    """A LOCKSTEP_HOME with the text side of a tiny model."""
    from workers.model.gguf_file import GgufFile
    from workers.text.vocabulary import build_tokenizer, text_card

    home = tmp_path_factory.mktemp("home")
    folder = home / "models" / MODEL
    folder.mkdir(parents=True)
    fields = GgufFile(GGUF).fields
    card = {"context_length": 4096, "vocab_size": 512, "weights_digest": "0123456789abcdef"}
    (folder / CARD).write_text(json.dumps({**card, "text": text_card(fields, 512)}))
    build_tokenizer(fields).save(str(folder / TOKENIZER))
    return home


@pytest.fixture(scope="session")
def text(tiny_home) -> TextModel:
    return TextModel.load(tiny_home / "models" / MODEL)


@pytest.fixture
def settings(tiny_home, redis_url, free_port) -> Settings:
    return Settings(
        home=tiny_home, redis_url=redis_url, model=MODEL, port=free_port(), max_queue=50
    )


class Door:
    """A running front door: base is its address, desk what its routes work with."""

    def __init__(self, settings: Settings) -> None:
        self.desk = Desk(settings)
        self.base = f"http://127.0.0.1:{settings.port}"
        self.server = uvicorn.Server(config_of(self.desk))
        self.thread = threading.Thread(target=self.server.run)
        self.http = httpx.Client(base_url=self.base, timeout=20)
        self.openai = openai.OpenAI(
            base_url=f"{self.base}/v1", api_key="none", timeout=20, max_retries=0
        )

    def start(self) -> None:
        self.thread.start()
        wait_until(lambda: self.server.started and self.desk.text is not None)

    def stop(self) -> None:
        self.http.close()
        self.openai.close()
        self.desk.reader.stop()
        self.server.should_exit = True
        self.thread.join(10)


@contextlib.contextmanager
def running(settings: Settings):
    door = Door(settings)
    try:
        door.start()
        yield door
    finally:
        door.stop()


@pytest.fixture
def door(settings):
    """The front door alone: nobody routes or computes."""
    with running(settings) as door:
        yield door


@pytest.fixture
def node(door, text):
    """Beside the front door, a stub that answers."""
    with StubNode(door.desk.store, text) as node:
        yield node


def wait_until(happened, what: str = "it did not happen") -> None:
    """Waits for a condition that must come true; the limit only ends a test that hangs."""
    for _ in range(2000):
        if happened():
            return
        time.sleep(0.005)
    raise AssertionError(what)


@pytest.fixture(name="wait_until")
def wait_until_fixture():
    return wait_until
