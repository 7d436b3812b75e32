"""An engine without a model: its tokens are a function of (request id, position).

metadata of a request steers it: {"kill_at": n} ends the process when token n is to be made,
{"hang_at": n} sleeps for ever there, {"raise_at": n} raises.
"""

import os
import time
import zlib

from workers.engine.engine import Output
from workers.engine.load import EngineLoad
from workers.wire import EndEvent, TokenEvent, Usage

LAYERS = 4


def token(request_id, index):
    return zlib.crc32(f"{request_id}/{index}".encode()) % 1000


def digest(request_id, index):
    return f"{zlib.crc32(f'{request_id}|{index}'.encode()):016x}"


def expected_text(request_id, num_tokens):
    return "".join(f" {token(request_id, i)}" for i in range(num_tokens))


class FakeEngine:
    """workers.queue.pool_worker.Runner; step_s is how long one step takes."""

    is_stalled = False

    def __init__(self, after_layer, step_s=0.0):
        self.after_layer, self.step_s = after_layer, step_s
        self.requests, self.next_index, self.cancelled = {}, {}, set()
        self.peak = 0

    def prepare(self, request):
        """There is nothing that takes long."""

    def add(self, request, journal=()):
        assert request.id not in self.requests
        assert [event.index for event in journal] == list(range(len(journal)))
        self.requests[request.id] = request
        self.next_index[request.id] = len(journal)
        self.peak = max(self.peak, len(self.requests))

    def cancel(self, request_id):
        self.cancelled.add(request_id)

    def drop(self, request_id):
        self.requests.pop(request_id, None)

    def has_work(self):
        return bool(self.requests)

    def load(self):
        return EngineLoad(len(self.requests), 0, 7, 9, 0.0)

    def rest(self):
        pass

    def step(self):
        for _ in range(LAYERS):
            time.sleep(self.step_s / LAYERS)
            self.after_layer()
        outputs = []
        for request_id, request in list(self.requests.items()):
            outputs += self.advance(request_id, request)
        return outputs

    def advance(self, request_id, request):
        index = self.next_index[request_id]
        if request_id in self.cancelled:
            return [self.end(request, EndEvent(status="cancelled", code="cancelled"))]
        if request.metadata.get("kill_at") == index:
            os._exit(137)
        if request.metadata.get("raise_at") == index:
            raise ZeroDivisionError(request_id)
        if request.metadata.get("hang_at") == index:
            time.sleep(3600)
        outputs = []
        if index < request.params.max_tokens:
            made = TokenEvent(
                index=index,
                token_id=token(request_id, index),
                text=f" {token(request_id, index)}",
                digest=digest(request_id, index),
            )
            outputs.append(Output(request_id, made))
            self.next_index[request_id] = index = index + 1
        if index >= request.params.max_tokens:
            usage = Usage(prompt_tokens=len(request.token_ids), output_tokens=index)
            end = EndEvent(
                status="finished",
                finish_reason="length",
                usage=usage,
                digest=digest(request_id, index - 1),
            )
            outputs.append(self.end(request, end))
        return outputs

    def end(self, request, end):
        del self.requests[request.id]
        self.cancelled.discard(request.id)
        return Output(request.id, end)
