"""The KV tier behind one engine: what its threads ask of it, with a bound on every wait.

A disk that hangs costs a request the time that computing would have taken, and no more: it then
goes on without what the disk had.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, TypeVar

from kernels.arithmetic import ARITHMETIC_VERSION
from kv_tier.chain import BLOCK_TOKENS
from kv_tier.files import DiskError
from kv_tier.remote.bucket import StoreError
from kv_tier.remote.pull import missing_bytes, pull
from kv_tier.remote.remote import Remote
from kv_tier.remote.sweep import forget
from kv_tier.tier import KvTier, wall_ms
from workers.log import logger
from workers.queue.pulse import Pulse
from workers.session.turn import Identity, ends_of
from workers.text.text_model import TextModel
from workers.wire import Request, TokenEvent

if TYPE_CHECKING:
    from kv_tier.manifest import Manifest
    from kv_tier.objects import Source
    from kv_tier.prefix import Prefix
    from workers.engine.engine import Engine
    from workers.engine.kept import Kept

log = logger("session")
Result = TypeVar("Result")
READERS: Final = 4
FORGET_S: Final = 10.0
ASK_AGAIN_S: Final = 20.0  # after an object store that failed
LOOK_S: Final = 0.2  # between two looks at a read that lasts
PATIENCE_S: Final = 1.0  # for a read, at least
UNKNOWN_TOKENS_PER_S: Final = 200.0  # of an engine that has computed nothing yet


class Backing:
    """All of it may be called from any thread."""

    def __init__(
        self,
        tier: KvTier,
        engine: "Engine",
        text: TextModel,
        pulse: Pulse,
        *,
        model: str,
        state_slots: int = 0,
        remote: Remote | None = None,
        idle_s: float = 30.0,
    ) -> None:
        """state_slots: of the engine; remote: the object store behind the tier, if there is one;
        idle_s: after which a session is sent there"""
        self.state_slots, self.remote, self.idle_s = state_slots, remote, idle_s
        self.tier, self.engine, self.text, self.pulse = tier, engine, text, pulse
        self.identity = Identity(
            model, text.weights_digest, str(ARITHMETIC_VERSION), engine.sizes.fingerprint
        )
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="reader")
        self._askers = ThreadPoolExecutor(READERS, thread_name_prefix="store-asker")
        self._ask_again = 0.0  # when a store that failed is asked again

    @property
    def has_state(self) -> bool:
        return self.engine.sizes.state_bytes > 0

    def moves(self) -> None:
        """Something moved beside the engine: leases may be renewed."""
        self.pulse.beside += 1

    def now_ms(self) -> int:
        return wall_ms()

    def fetch(
        self, request: Request, journal: Sequence[TokenEvent], head: "Manifest | None"
    ) -> "Prefix | None":
        """The beginning of a request that is in files, checked. None: nothing, or not in time."""
        token_ids = [*request.token_ids, *(event.token_id for event in journal)]
        ends = ends_of(token_ids, head, has_state=self.has_state)
        return self._in_time(request, token_ids, partial(self._read, ends=ends))

    def fetch_again(self, request: Request, token_ids: list[int], num_kv: int) -> "Prefix | None":
        """What was written of a request when it had to give its memory away, num_kv tokens: all of
        it, also what is in memory still, since that may go before the request has its place."""
        ends = sorted({num_kv, *ends_of(token_ids, None, has_state=self.has_state)})
        read = partial(self._read, ends=ends, resident=lambda key: False)
        return self._in_time(request, token_ids, read)

    def _in_time(
        self,
        request: Request,
        token_ids: list[int],
        read: "Callable[[str, list[int]], Prefix | None]",
    ) -> "Prefix | None":
        """read(tenant, token_ids), unless computing them would have been faster."""
        reading = self._readers.submit(read, request.tenant, token_ids)
        seconds = self._computing_s(len(token_ids))
        if self._comes(reading, seconds):
            return reading.result()
        log.warning("a disk is slower than computing", id=request.id, waited_s=seconds)
        if not reading.cancel():
            reading.add_done_callback(close_late)
        return None

    def ask_store(
        self, call: Callable[[Remote], Result], seconds: float
    ) -> tuple[Result | None, str]:
        """What a call of the object store gives; None: there is none, or why it has not answered.

        One that failed is left alone for a while, so that not each request waits for it.
        """
        remote = self.remote
        if remote is None:
            return None, ""
        if time.monotonic() < self._ask_again:
            return None, "the object store failed just now"
        future = self._askers.submit(call, remote)
        try:
            if self._comes(future, seconds):
                return future.result(), ""
            future.cancel()
            trouble = f"the object store gave no answer within {seconds:.0f} s"
        except (StoreError, DiskError) as error:
            trouble = str(error)
        self._ask_again = time.monotonic() + ASK_AGAIN_S
        remote.count(failures=1)
        log.warning("the object store fails, and is not asked for a while", reason=trouble)
        return None, trouble

    def bring(self, manifest: "Manifest", end: int) -> None:
        """What the object store has of a session's KV is fetched, as far as it helps a prompt that
        begins with `end` of its tokens, unless computing them is faster."""
        remote, sizes, given_up = self.remote, self.engine.sizes, threading.Event()
        if remote is None or not end:
            return
        num_bytes, seconds = missing_bytes(remote, manifest, sizes, end), self._computing_s(end)
        is_known = self.engine.prefill_tokens_per_s > 0
        if num_bytes and not (is_known and num_bytes / remote.speed > seconds):
            fetch = partial(pull, own=manifest, sizes=sizes, end=end, stops=given_up.is_set)
            self.ask_store(fetch, seconds)
            given_up.set()

    def forget(self, tenant: str, session_id: str) -> None:
        """A session was deleted: the object store has it no more, at once or at its next sweep."""
        self.ask_store(partial(forget, tenant=tenant, session_id=session_id), FORGET_S)

    def _computing_s(self, num_tokens: int) -> float:
        speed = self.engine.prefill_tokens_per_s or UNKNOWN_TOKENS_PER_S
        return max(PATIENCE_S, num_tokens / speed)

    def _comes(self, future: "Future[Any]", seconds: float) -> bool:
        """Whether it is done in time; meanwhile leases are renewed."""
        deadline = time.monotonic() + seconds
        while not self.pulse.stopping and time.monotonic() <= deadline:
            if wait([future], LOOK_S).done:
                return True
            self.moves()
        return future.done()

    def _read(
        self,
        tenant: str,
        token_ids: list[int],
        *,
        ends: list[int],
        resident: Callable[[bytes], bool] | None = None,
    ) -> "Prefix | None":
        engine = self.engine
        try:
            return self.tier.fetch(
                self.tier.chain(tenant, engine.sizes.fingerprint),
                token_ids,
                engine.sizes,
                ends=ends,
                resident=resident or engine.resident,
                prefill_tokens_per_s=engine.prefill_tokens_per_s,
            )
        except Exception:  # whatever it is, the request can be computed
            log.exception("KV is not read")
            return None

    def put(self, kept: "Kept", *, state: bool) -> int:
        """Write what a Kept holds; bytes written. Raises DiskFull, DiskError."""
        first, speed = self._first(kept), self.engine.prefill_tokens_per_s
        num_new = kept.num_kv - first * BLOCK_TOKENS
        seconds = num_new / speed if speed else 0.0
        sources = self._sources(kept, first, state)
        num_bytes = self.tier.put(kept.request.tenant, sources, seconds=seconds)
        self.tier.renew(key for key, _ in kept.blocks[:first])
        return num_bytes

    def _first(self, kept: "Kept") -> int:
        """The first block that is no file: an earlier write behind may have failed, or have been
        given up, and behind a hole nothing is found."""
        for index, (key, _) in enumerate(kept.blocks[: kept.first]):
            if not self.tier.objects.has("block", key):
                return index
        return kept.first

    def _sources(self, kept: "Kept", first: int, state: bool) -> "Iterator[Source]":
        for source in islice(self.engine.sources(kept, state=state), first, None):
            yield source
            self.moves()

    def stats(self) -> dict[str, float]:
        remote = {} if self.remote is None else self.remote.stats()
        try:
            return {**self.tier.stats(), **remote}
        except Exception as error:
            log.warning("the tier says nothing of itself", error=str(error)[:200])
            return remote


def close_late(reading: "Future[Prefix | None]") -> None:
    """Nobody waits for it any more."""
    prefix = None if reading.cancelled() else reading.result()
    if prefix is not None:
        prefix.close()


def without_waiting(call: Callable[[], object], what: str) -> None:
    """Do what may fail and is no reason to stop."""
    try:
        call()
    except Exception as error:
        log.warning(what, error=str(error)[:200])
