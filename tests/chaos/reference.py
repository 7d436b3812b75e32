"""The tokens of an undisturbed run: each request computed again by an engine that nobody disturbs.

By law one its answer is a function of the prompt and the parameters alone, so one engine answers
for all runs with a model, and what it has computed once it remembers.
"""

from functools import lru_cache

import msgspec

from ingest.command.local_engine import Processor, local_engine
from tests.chaos.node import packed
from workers.engine.limits import blocks_for
from workers.wire import EndEvent, Request, TokenEvent

BATCH, MAX_TOKENS = 8, 4096


class Reference:
    """An engine, and what it has answered."""

    def __init__(self, model: str) -> None:
        folder = packed(model) / model
        blocks = BATCH * blocks_for(MAX_TOKENS)
        self.engine = local_engine(
            folder, Processor("cpu", 1, 512), max_batch=BATCH, num_blocks=blocks
        )
        self.known: dict[bytes, list[TokenEvent | EndEvent]] = {}

    def answers(self, requests: list[Request]) -> list[list[TokenEvent | EndEvent]]:
        """Of each request its events, the end last."""
        new = {key_of(request): request for request in requests}
        self._compute({key: new[key] for key in new if key not in self.known})
        return [self.known[key_of(request)] for request in requests]

    def _compute(self, requests: dict[bytes, Request]) -> None:
        told: dict[str, list[TokenEvent | EndEvent]] = {}
        for number, (key, request) in enumerate(requests.items()):
            self.known[key] = told[str(number)] = []
            self.engine.add(
                msgspec.structs.replace(request, id=str(number), deadline_ms=None, sla="standard")
            )
        while self.engine.has_work():
            for output in self.engine.step():
                told[output.request_id].append(output.event)


def key_of(request: Request) -> bytes:
    """What its tokens hang on."""
    return msgspec.msgpack.encode((request.token_ids, request.params))


@lru_cache
def reference_of(model: str) -> Reference:
    return Reference(model)
