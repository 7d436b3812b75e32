"""A door whose batches are driven, and OpenAI's client as the one who asks."""

import json
import time

import pytest

from tests.ingest.conftest import running
from workers.settings import Settings

CHAT = "/v1/chat/completions"


def chat_line(custom_id: str, **body) -> dict:
    """One line of an input file."""
    asked = {"model": "tiny", "messages": [{"role": "user", "content": "Hello"}], **body}
    return {"custom_id": custom_id, "method": "POST", "url": CHAT, "body": asked}


def jsonl(lines) -> bytes:
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def rows(raw: bytes | str) -> list[dict]:
    return [json.loads(line) for line in raw.splitlines()]


@pytest.fixture
def home(tiny_home, tmp_path):
    """A home of this test's own, with the tiny model."""
    (tmp_path / "models").symlink_to(tiny_home / "models")
    return tmp_path


@pytest.fixture
def settings(home, redis_url, free_port) -> Settings:
    return Settings(home=home, redis_url=redis_url, model="tiny", port=free_port(), max_queue=50)


@pytest.fixture
def door(settings):
    with running(settings) as door:
        yield door


class Client:
    """What a person does with batches, by OpenAI's client."""

    def __init__(self, door) -> None:
        self.openai = door.openai

    def upload(self, raw: bytes, **more):
        return self.openai.files.create(file=("in.jsonl", raw), purpose="batch", **more)

    def begin(self, lines, window: str = "24h", **more):
        file_id = self.upload(jsonl(lines)).id
        return self.openai.batches.create(
            input_file_id=file_id, endpoint=CHAT, completion_window=window, **more
        )

    def over(self, batch_id: str):
        """The batch once it is over."""
        for _ in range(4000):
            batch = self.openai.batches.retrieve(batch_id)
            if batch.status in ("completed", "failed", "expired", "cancelled"):
                return batch
            time.sleep(0.005)
        raise AssertionError(batch)

    def rows(self, file_id: str | None) -> list[dict]:
        return rows(self.openai.files.content(file_id).content) if file_id else []


@pytest.fixture
def client(door) -> Client:
    return Client(door)
