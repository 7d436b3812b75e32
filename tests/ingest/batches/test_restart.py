"""A batch goes on where it was: a killed process costs no line and doubles none."""

import contextlib
import os
import subprocess
import sys
from collections import Counter

import httpx
import openai
import pytest

from ingest.batches.clerk import Clerk
from ingest.batches.record import Batch
from ingest.batches.shelf import new_id
from ingest.desk import Desk
from tests.ingest.batches.conftest import Client, chat_line
from tests.ingest.conftest import ROOT, running
from tests.ingest.stub_node import Play, StubNode
from workers.store import Store


class Process:
    """python -m ingest, with OpenAI's client for it."""

    def __init__(self, settings, wait_until) -> None:
        env = {k: v for k, v in os.environ.items() if not k.startswith("LOCKSTEP_")}
        env |= {
            "LOCKSTEP_HOME": str(settings.home),
            "LOCKSTEP_MODEL": settings.model,
            "LOCKSTEP_REDIS_URL": settings.url,
            "LOCKSTEP_PORT": str(settings.port),
        }
        self.process = subprocess.Popen([sys.executable, "-m", "ingest"], cwd=ROOT, env=env)
        self.base = f"http://127.0.0.1:{settings.port}"
        self.openai = openai.OpenAI(base_url=f"{self.base}/v1", api_key="none", max_retries=0)
        wait_until(self.is_up)

    def is_up(self) -> bool:
        try:
            return httpx.get(f"{self.base}/v1/models").status_code == 200
        except httpx.TransportError:
            return False

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self.openai.close()


class Slowly(StubNode):
    """Ends the first three requests, and holds the others until it may go on."""

    def may_go_on(self, request_id: str) -> bool:
        return len(self.requests) <= 3 or super().may_go_on(request_id)


def test_a_killed_process_loses_no_line_and_doubles_none(settings, text, wait_until):
    with contextlib.ExitStack() as stack:
        node = stack.enter_context(Slowly(Store.of(settings), text))
        node.play = Play(pause_after=1)
        first = Process(settings, wait_until)
        stack.callback(first.kill)
        client = Client(first)
        batch_id = client.begin([chat_line(f"c{i}") for i in range(8)]).id
        wait_until(lambda: first.openai.batches.retrieve(batch_id).request_counts.completed == 3)
        first.kill()
        (output,) = [p for p in (settings.home / "files/default").iterdir() if is_output(p)]
        with output.open("ab") as file:
            file.write(b'{"id": "batch_req_torn')
        client = Client(stack.enter_context(running(settings)))
        node.go.set()
        batch = client.over(batch_id)
        assert (batch.status, batch.request_counts.completed) == ("completed", 8)
        told = Counter(row["custom_id"] for row in client.rows(batch.output_file_id))
        assert told == Counter(f"c{i}" for i in range(8))
        assert Counter(r.id for r in node.requests) == Counter(
            f"{batch_id}-{n}" for n in range(1, 9)
        )


def is_output(path) -> bool:
    return path.name.startswith("file-") and path.suffix == "" and b"batch_req" in path.read_bytes()


@pytest.fixture
def place(settings):
    """A batch that nobody drives yet."""
    clerk = Clerk(Desk(settings))
    batch = Batch(
        id=new_id("batch_"),
        endpoint="/v1/chat/completions",
        input_file_id=new_id("file-"),
        completion_window="1h",
        created_at=0,
        expires_at=1,
        kept_s=1,
    )
    clerk.books.begin("default", batch)
    return "default", batch.id


def test_two_processes_do_not_drive_one_batch(settings, place):
    first, second = Clerk(Desk(settings)), Clerk(Desk(settings))
    lock = first.lock(place)
    assert lock is not None and second.lock(place) is None
    os.close(lock)
    assert second.lock(place) is not None


def test_a_batch_whose_file_was_deleted_by_hand_fails_and_says_so(settings, place, wait_until):
    with running(settings) as door:
        batch = Client(door).over(place[1])
        assert batch.status == "failed" and batch.errors.data[0].code == "file_not_found"
        wait_until(lambda: not list((settings.home / "files" / "open").iterdir()))
