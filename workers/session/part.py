"""The threads of a pool that have to do with sessions and files, wired to its worker.

    hand_in ─► restorers ─► Work, into the inbox
    end     ─► keeper of sessions ─► emitter ─► writer ─► Do(release), into the inbox
    step    ─► writer: what of a session's turn is complete, while it goes on
    rest    ─► exporter: to the object store, if there is one

Short prompts never come here. Long ones without a session have a restorer of their own, so that
they do not wait behind sessions whose files lie on a slow disk.
"""

from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import Final, Protocol

from kv_tier.chain import BLOCK_TOKENS
from workers.engine.kept import Kept
from workers.engine.load import EngineLoad
from workers.queue.emitter import Emitter, Told
from workers.queue.messages import Do, Message, Work
from workers.queue.wishes import Wishes
from workers.session.backing import Backing
from workers.session.exporter import Exporter
from workers.session.keeper_of_sessions import KeeperOfSessions
from workers.session.recall import Recall
from workers.session.restorer import Restorer
from workers.session.suspended import Suspended
from workers.session.turn import Prepared
from workers.session.writer import Writer
from workers.wire import EndEvent, Request
from workers.worker_store import Claimed, WorkerStore

SESSION_RESTORERS: Final = 3
KEPT_SHARE: Final = 4  # of the blocks: what the writer may hold before it hurries


class Worker(Protocol):
    """What these threads need of the pool's worker."""

    store: WorkerStore
    queue_name: str
    name: str
    inbox: "SimpleQueue[Message]"
    held: dict[str, Claimed]
    wishes: Wishes
    emitter: Emitter
    capacity: int

    @property
    def load(self) -> EngineLoad: ...

    def lost(self, item: Claimed) -> None: ...


class SessionPart:
    """begin() starts the threads, end() ends all but writer and exporter, which are drained."""

    def __init__(self, worker: Worker, backing: Backing) -> None:
        self.worker, self.backing, self.engine = worker, backing, backing.engine
        self.writer = Writer(
            worker.store,
            worker.name,
            backing,
            release=self.release,
            release_kv=self.release_kv,
            blocks_max=max(1, worker.load.total_blocks // KEPT_SHARE),
            states_max=self.states_max(),
        )
        self.keeper = KeeperOfSessions(
            worker.store,
            worker.queue_name,
            worker.name,
            backing,
            self.writer,
            tell=worker.emitter.put,
            lost=worker.lost,
            release=self.release,
        )
        self.recall = Recall(worker.store, backing)
        self.exporter = None
        if backing.remote is not None:
            self.exporter = Exporter(worker.store, backing.remote, idle_s=backing.idle_s)
        self.of_sessions: SimpleQueue[Claimed | None] = SimpleQueue()
        self.of_prompts: SimpleQueue[Claimed | None] = SimpleQueue()
        self.restorers = [
            *(self.restorer(f"{n}", self.of_sessions) for n in range(SESSION_RESTORERS)),
            self.restorer("of prompts", self.of_prompts),
        ]

    def restorer(self, name: str, items: "SimpleQueue[Claimed | None]") -> Restorer:
        worker = self.worker
        return Restorer(
            name,
            worker.store,
            worker.name,
            self.backing,
            items,
            done=self.restored,
            ended=self.not_restored,
            lost=worker.lost,
            is_wanted=self.is_wanted,
            most_tokens=worker.load.total_blocks * BLOCK_TOKENS,
            recall=self.recall,
        )

    def states_max(self) -> int:
        """Slots that warm states may hold: what running sequences can do without."""
        spare = self.backing.state_slots - self.worker.capacity
        return max(1, spare // 2)

    def begin(self) -> None:
        for thread in (self.writer, self.keeper, *self.restorers, self.exporter):
            if thread is not None:
                thread.start()

    def end(self, seconds: float) -> None:
        """Nothing more is restored; what has ended is kept."""
        if self.exporter is not None:
            self.exporter.hurry()
        self.of_prompts.put(None)
        for _ in range(SESSION_RESTORERS):
            self.of_sessions.put(None)
        self.keeper.flush(seconds)

    def drain(self, seconds: float) -> bool:
        """The pool stops. Whether all that ended is written, and sent, or will not be now."""
        if not self.writer.drain(seconds):
            return False
        return self.exporter is None or self.exporter.finish(seconds)

    def wants(self, request: Request) -> bool:
        """Whether a restorer has to see it, whatever its journal holds."""
        return request.session_id is not None or len(request.token_ids) > BLOCK_TOKENS

    def take(self, item: Claimed) -> None:
        """Have it prepared."""
        assert item.request is not None, item.job_id
        has_session = item.request.session_id is not None
        (self.of_sessions if has_session else self.of_prompts).put(item)

    def write_behind(self) -> None:
        """After a step: what has become complete is written while its requests go on."""
        writer = self.writer
        if writer.takes_behind:
            for kept in self.engine.behind(writer.state_every_ms):
                writer.put(Suspended(kept, is_behind=True))

    # --- called by the threads ---

    def restored(self, item: Claimed, prepared: Prepared) -> None:
        self.worker.inbox.put(Work(item, prepared))

    def not_restored(self, item: Claimed, end: EndEvent) -> None:
        """It ends here, unless it is somebody else's: then the emitter is told so."""
        self.worker.emitter.put(Told(item, end))

    def is_wanted(self, item: Claimed) -> bool:
        worker = self.worker
        return worker.held.get(item.job_id) is item and item.job_id not in worker.wishes.cancelled

    def release(self, kept: Kept) -> None:
        self.worker.inbox.put(Do(partial(self.engine.release, kept)))

    def release_kv(self, kept: Kept, then: Callable[[Kept | None], object]) -> None:
        def call() -> None:
            self.engine.release(kept)
            then(self.engine.hold_state(kept))

        self.worker.inbox.put(Do(call))

    def stats(self, load: EngineLoad) -> dict[str, float]:
        """What PoolLoad.kv says: counters of the engine, the tier and the writer, by name."""
        own = {**self.backing.stats(), **self.writer.stats(), **self.recall.stats()}
        return {**load.kv, **own}
