"""A node of a fleet without its model: the real router, and a pool that computes nothing."""

import json
import threading
from pathlib import Path
from typing import Final

from redis.exceptions import RedisError

from router.__main__ import Stopped, run
from router.loop import Router
from router.membership import Membership
from tests.fleet.simulation.fake_pool import FakePool
from workers.cost import CostModel
from workers.fleet.presence import NodeReport, Presence
from workers.model.gguf_file import GgufFile
from workers.store import Store
from workers.text.text_model import CARD, TOKENIZER, TextModel
from workers.text.vocabulary import build_tokenizer, text_card
from workers.wire import Keys
from workers.worker_store import WorkerStore

GGUF: Final = Path(__file__).parents[2] / "golden" / "tiny_llama.Q4_0.gguf"
PREFIX: Final = "lockstep"
LEASE_S: Final = 15.0
PLACES: Final = 8
COST: Final = CostModel(fixed_ms=40.0, decode_ms=1.0, prefill_ms=0.05, context_us=1.0)


def make_text(folder: Path) -> None:
    """The text side of a tiny model, to be loaded by each process."""
    fields = GgufFile(GGUF).fields
    card = {"context_length": 4096, "vocab_size": 512, "weights_digest": "0123456789abcdef"}
    (folder / CARD).write_text(json.dumps({**card, "text": text_card(fields, 512)}))
    build_tokenizer(fields).save(str(folder / TOKENIZER))


class Stop:
    """As router/__main__.py has it for signals: a flag, and the end of a wait."""

    def __init__(self) -> None:
        self.asked = False

    def __enter__(self) -> None:
        if self.asked:
            raise Stopped

    def __exit__(self, *_: object) -> None:
        if self.asked:
            raise Stopped


class FakeNode:
    """Two threads, from start() to stop()."""

    def __init__(self, url: str, name: str, text: TextModel, *, cost: CostModel = COST) -> None:
        keys = Keys(PREFIX, node=name)
        self.stop_asked = Stop()
        store = Store(url, keys, lease_s=LEASE_S)
        told = NodeReport(node=name, instance=name, model=text.name)
        self.router = Router(
            store,
            f"router-{name}",
            text,
            (),
            stop_asked=lambda: self.stop_asked.asked,
            fleet=Membership(Presence(store, "identity", told)),
        )
        self.pool = FakePool(
            WorkerStore(url, keys, lease_s=LEASE_S), text.name, cost, PLACES, self.is_stopping
        )
        self.threads = [
            threading.Thread(target=self.route, name=f"router {name}"),
            threading.Thread(target=self.pool.serve, name=f"pool {name}"),
        ]
        self.failure = ""

    def is_stopping(self) -> bool:
        return self.stop_asked.asked

    def start(self) -> None:
        for thread in self.threads:
            thread.start()

    def route(self) -> None:
        try:
            run(self.router, self.stop_asked)  # type: ignore[arg-type]
        except Stopped:
            return
        except RedisError as error:
            self.failure = str(error)

    def stop(self) -> None:
        self.stop_asked.asked = True
        for thread in self.threads:
            thread.join(10)
