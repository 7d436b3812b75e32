"""A router and a pool in one thread, for tests of the front door: real store, told tokens.

What a request gets is told beforehand: pieces of text, where to pause, how to end.
"""

import threading
from dataclasses import dataclass, field

import msgpack
import msgspec

from router.admit import Door, Reject, admit
from workers.store import Store
from workers.wire import (
    GROUP,
    SLA_CLASSES,
    EndEvent,
    PoolLoad,
    SamplingParams,
    TokenEvent,
    Usage,
)
from workers.worker_store import Claimed, WorkerStore

PIECES = (" Paris", ", of", " course", ".")


@dataclass
class Play:
    """What happens to the requests that come next."""

    pieces: tuple[str, ...] = PIECES
    pause_after: int | None = None  # tokens; then the pool waits for `go`, or for the cancel flag
    end: EndEvent = field(default_factory=lambda: EndEvent(status="finished", finish_reason="stop"))


class StubNode:
    """Runs one request at a time in its own thread, from enter to exit."""

    def __init__(self, store: Store, text) -> None:
        self.store = WorkerStore(store.url, store.keys)
        self.text = text
        self.play = Play()
        self.go = threading.Event()
        self.stopping = threading.Event()
        self.requests = []  # as admitted, in the order they came
        self.is_reading = True
        self.thread = threading.Thread(target=self.run)

    def __enter__(self) -> "StubNode":
        for sla in SLA_CLASSES:
            key = self.store.keys.requests(sla)
            self.store.redis.xgroup_create(key, GROUP, id="0", mkstream=True)
            self.store.redis.xgroup_createconsumer(key, GROUP, "stub")
        self.report()
        self.thread.start()
        return self

    def __exit__(self, *_) -> None:
        self.stopping.set()
        self.go.set()
        self.thread.join(10)

    def report(self, **changes) -> None:
        """A ready pool and a living router, as /readyz wants them."""
        self.store.redis.set(self.store.keys.router("stub"), 1, ex=60)
        told = {"pool": "cpu", "worker": "stub", "state": "ready", "model": self.text.name}
        self.store.report(PoolLoad(**{**told, "total_blocks": 64, **changes}))
        self.store.redis.persist(self.store.keys.pool("cpu", "stub"))  # however long a test takes

    def run(self) -> None:
        streams = {self.store.keys.requests(sla): ">" for sla in SLA_CLASSES}
        while not self.stopping.is_set():
            if not self.is_reading:
                self.stopping.wait(0.01)
                continue
            reply = self.store.redis.xreadgroup(GROUP, "stub", streams, count=1, block=20)
            for key, (entries,) in (reply or {}).items():
                for entry_id, fields in entries:
                    self.take(key.decode().rsplit(":", 1)[1], entry_id.decode(), fields)

    def take(self, sla: str, entry_id: str, fields: dict[bytes, bytes]) -> None:
        body = msgpack.unpackb(fields[b"m"])
        door = Door(text=self.text, now_ms=int(entry_id.split("-")[0]))
        request = admit(body, door, sla=sla, entry_id=entry_id, plain=False)
        assert not isinstance(request, Reject), request
        self.requests.append(request)
        routed = self.store.route(
            sla=sla, entry_id=entry_id, request=request, pool="cpu", reason="cpu: stub"
        )
        if routed == "routed":
            for item in self.store.claim("cpu", "stub", 1):  # none: it was cancelled meanwhile
                self.generate(item)

    def generate(self, item: Claimed) -> None:
        if item.request.session_id is not None and not item.request.composed:
            prompt = msgspec.structs.replace(item.request, token_ids=(1, 2, 3), composed=True)
            assert self.store.compose(item, prompt)
        params = item.request.params
        pieces = self.play.pieces[: params.max_tokens]
        for index in range(len(pieces) + 1):
            if index == self.play.pause_after and not self.may_go_on(item.job_id):
                end = EndEvent(status="cancelled", code="cancelled", error="cancelled")
                return self.finish(item, end, index)
            if index < len(pieces):
                self.store.journal("cpu", [(item, [self.token(index, pieces[index], params)])])
        self.finish(item, self.play.end, len(pieces))

    def may_go_on(self, request_id: str) -> bool:
        """Waits for the test's word; False when the request was cancelled, or the test is over."""
        while not self.go.wait(0.01):
            if self.store.redis.hget(self.store.keys.job(request_id), "cancel"):
                return False
        return not self.stopping.is_set()

    def token(self, index: int, piece: str, params: SamplingParams) -> TokenEvent:
        logprobs = None
        if params.logprobs is not None:
            logprobs = [(index + 1 + other, -0.25 - other) for other in range(1 + params.logprobs)]
        digest = f"{index:016x}"
        return TokenEvent(
            index=index, token_id=index + 1, text=piece, digest=digest, logprobs=logprobs
        )

    def finish(self, item: Claimed, end: EndEvent, num_tokens: int) -> None:
        prompt_tokens = len(item.request.token_ids)
        told = msgspec.structs.replace(
            end,
            digest="00000000000000ff",
            usage=Usage(prompt_tokens=prompt_tokens, output_tokens=num_tokens),
            ttft_ms=12.5,
            tpot_ms=2.25,
            queue_ms=1.5,
        )
        text = "".join(self.play.pieces[:num_tokens]) + end.text
        kept = self.store.finish("cpu", "stub", item, told, text)
        assert kept or self.stopping.is_set(), "whose store a test has emptied"
