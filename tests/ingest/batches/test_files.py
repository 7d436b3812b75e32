"""Files as OpenAI's client sees them, and uploads that are none."""

import os
import socket

import openai
import pytest

from ingest.batches import file_routes
from tests.ingest.batches.conftest import Client, chat_line, jsonl
from tests.ingest.conftest import running

RAW = jsonl([chat_line("a"), chat_line("b")])


def test_a_file_comes_back_as_it_went(client):
    made = client.upload(RAW)
    assert (made.bytes, made.filename, made.purpose) == (len(RAW), "in.jsonl", "batch")
    assert client.openai.files.content(made.id).content == RAW
    assert client.openai.files.retrieve(made.id) == made
    assert client.openai.files.delete(made.id).deleted
    with pytest.raises(openai.NotFoundError):
        client.openai.files.content(made.id)


def test_only_the_nodes_user_can_read_one(client, home):
    file_id = client.upload(RAW).id
    for name in (file_id, f"{file_id}.json"):
        assert (home / "files" / "default" / name).stat().st_mode & 0o777 == 0o600
    assert (home / "files").stat().st_mode & 0o777 == 0o700
    assert not [name for name in os.listdir(home / "files") if name.startswith(".")]


def test_files_are_listed_in_either_order_page_by_page(client):
    made = [client.upload(RAW).id for _ in range(3)]
    assert [file.id for file in client.openai.files.list(limit=2)] == made[::-1]
    assert [file.id for file in client.openai.files.list(limit=2, order="asc")] == made
    assert client.openai.files.list(purpose="batch_output").data == []


def test_a_file_stays_as_long_as_is_asked(client):
    after = {"anchor": "created_at", "seconds": 3600}
    made = client.upload(RAW, expires_after=after)
    assert made.expires_at == made.created_at + 3600
    with pytest.raises(openai.BadRequestError, match="seconds"):
        client.upload(RAW, expires_after={**after, "seconds": 5})


@pytest.mark.parametrize("purpose", ["fine-tune", "user_data"])
def test_another_purpose_is_refused_by_name(client, purpose):
    with pytest.raises(openai.BadRequestError) as refused:
        client.openai.files.create(file=("in.jsonl", RAW), purpose=purpose)
    assert refused.value.param == "purpose"


def test_a_large_file_is_refused_before_it_is_read(door, settings):
    head = "POST /v1/files HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000000000\r\n"
    head += "Content-Type: multipart/form-data; boundary=b\r\n\r\n"
    with socket.create_connection(("127.0.0.1", settings.port), timeout=20) as connection:
        connection.sendall(head.encode())
        assert connection.recv(100).startswith(b"HTTP/1.1 413")


def test_one_that_does_not_say_how_large_it_is_is_counted(door, monkeypatch):
    monkeypatch.setattr(file_routes, "FILE_BYTES_MAX", 1000)

    def body():
        yield b'--b\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\n'
        for _ in range(100):
            yield b"x" * 1000

    headers = {"content-type": "multipart/form-data; boundary=b"}
    response = door.http.post("/v1/files", content=body(), headers=headers)
    assert response.status_code == 413
    assert response.json()["error"]["code"] == "file_too_large"


PART = b'--b\r\nContent-Disposition: form-data; name="%b"%b\r\n\r\n%b\r\n'
WHOLE = (
    PART % (b"purpose", b"", b"batch") + PART % (b"file", b'; filename="f"', b"{}") + b"--b--\r\n"
)
NO_FORMS = {
    "ends early": WHOLE[:-9],
    "no file": PART % (b"purpose", b"", b"batch") + b"--b--\r\n",
    "two files": PART % (b"file", b'; filename="f"', b"{}") + WHOLE,
    "many parts": (PART % (b"x", b"", b"1")) * 40 + WHOLE,
    "a long field": PART % (b"x", b"", b"1" * 5000) + WHOLE,
    "another boundary": WHOLE.replace(b"--b", b"--c"),
    "empty": b"",
}


@pytest.mark.parametrize("name", NO_FORMS)
def test_what_is_no_form_is_refused_and_leaves_nothing(door, home, name):
    headers = {"content-type": "multipart/form-data; boundary=b"}
    response = door.http.post("/v1/files", content=NO_FORMS[name], headers=headers)
    assert response.status_code == 400, response.text
    assert door.http.get("/v1/files").json()["data"] == []
    assert not [name for name in os.listdir(home / "files") if name.startswith(".upload")]


def test_the_form_itself_is_right(door):
    headers = {"content-type": "multipart/form-data; boundary=b"}
    assert door.http.post("/v1/files", content=WHOLE, headers=headers).json()["bytes"] == 2


def test_a_tenants_room_has_an_end(settings):
    with running(settings.model_copy(update={"files_tenant_mib": 1})) as door:
        client = Client(door)
        client.upload(b"x" * 700_000)
        with pytest.raises(openai.InternalServerError, match="delete some"):
            client.upload(b"x" * 700_000)


@pytest.mark.parametrize(
    "file_id", ["..%2f..%2fnode_id", "file-", "file-" + "g" * 24, "file-" + "0" * 24]
)
def test_what_is_no_file_is_not_found(door, file_id):
    for path in (f"/v1/files/{file_id}", f"/v1/files/{file_id}/content"):
        assert door.http.get(path).status_code == 404
