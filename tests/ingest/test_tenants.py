"""What a tenant keeps at the door is its own: files, batches, responses."""

import openai
import pytest

from ingest.access.keys import Key, add_key
from tests.ingest.batches.conftest import CHAT, chat_line, jsonl


@pytest.fixture
def clients(door, node):
    """OpenAI's clients of two tenants; the first one is the node's own."""
    names = ("default", "acme")
    secrets = [add_key(door.desk.store, Key(id=name, tenant=name)) for name in names]
    base = f"{door.base}/v1"
    made = [openai.OpenAI(base_url=base, api_key=secret, max_retries=0) for secret in secrets]
    yield made
    for client in made:
        client.close()


def test_another_tenants_response_is_none(clients):
    ours, theirs = clients
    kept = theirs.responses.create(model="tiny", input="Hello")
    assert theirs.responses.retrieve(kept.id).output_text
    for name in (kept.id, f"acme--{kept.id}"):
        for ask in (ours.responses.retrieve, ours.responses.delete, ours.responses.cancel):
            with pytest.raises(openai.NotFoundError):
                ask(name)
        with pytest.raises(openai.BadRequestError, match="no response"):
            ours.responses.create(model="tiny", input="And?", previous_response_id=name)
    assert theirs.responses.retrieve(kept.id).output_text


def test_another_tenants_files_and_batches_are_none(clients):
    ours, theirs = clients
    file = theirs.files.create(file=("in.jsonl", jsonl([chat_line("a")])), purpose="batch")
    asked = {"input_file_id": file.id, "endpoint": CHAT, "completion_window": "1h"}
    batch = theirs.batches.create(**asked)
    assert ours.files.list().data == ours.batches.list().data == []
    for ask, name in (
        (ours.files.retrieve, file.id),
        (ours.files.content, file.id),
        (ours.files.delete, file.id),
        (ours.batches.retrieve, batch.id),
        (ours.batches.cancel, batch.id),
    ):
        with pytest.raises(openai.NotFoundError):
            ask(name)
    with pytest.raises(openai.BadRequestError, match="no file"):
        ours.batches.create(**asked)
    assert theirs.files.retrieve(file.id).id == file.id
