"""The RQ worker of the queue `webhooks`: several attempts at once, each in a thread of its own.

    claim ─► start ─► endpoint full? ──► put off, its turn comes later
                         │ no
                         ▼
                      thread: send ─► end (one fenced script) ─► landed ─► place given back
    clock: queues what is due, then sleeps until the next one is

A thread that hangs would hang for the deadline of an attempt and no longer (deliver.py).
"""

import os
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from queue import Empty, SimpleQueue
from typing import Any, Final

from redis.exceptions import RedisError

from workers.address import Forbidden, parse_url
from workers.log import logger
from workers.queue.batch_worker import BatchWorker
from workers.queue.messages import Stop
from workers.queue.pulse import Pulse
from workers.queue.servant import CRASH_EXIT
from workers.webhook.deliver import Outcome
from workers.webhook.endpoints import Endpoints
from workers.webhook.outbox import Outbox, request_id_of
from workers.webhook.schedule import delay_s
from workers.webhook.sender import Sender, Sent
from workers.wire import WEBHOOKS
from workers.worker_store import Claimed, WorkerStore

CAPACITY: Final = 64  # threads that mostly wait; a slow endpoint holds one of them
LOOK_S: Final = 60.0  # another node's worker may have died and left something due
WAIT_S: Final = 0.5
log = logger("webhooks")


class WebhookWorker(BatchWorker):
    """schedule: seconds before attempt 2, 3, ...; draw: the jitter's random numbers."""

    def __init__(
        self,
        store: WorkerStore,
        sender: Sender,
        schedule: Sequence[float],
        *,
        name: str,
        capacity: int = CAPACITY,
        draw: Callable[[], float] = random.random,
    ) -> None:
        super().__init__(store, WEBHOOKS, name=name, capacity=capacity, pulse=Pulse())
        self.sender, self.schedule, self.draw = sender, tuple(schedule), draw
        self.outbox = Outbox(store)
        self.endpoints = Endpoints()
        self.in_flight: dict[str, str] = {}  # execution id: endpoint
        self.landed: SimpleQueue[tuple[str, float]] = SimpleQueue()  # execution id, seconds
        self.due_changed = threading.Event()

    # --- hooks of BatchWorker ---

    def bootstrap(self, *arguments: Any, **options: Any) -> None:
        super().bootstrap(*arguments, **options)
        threading.Thread(target=self._keep_time, daemon=True, name="clock").start()

    def prepare(self, item: Claimed) -> dict[str, Any]:
        return self.store.webhook(request_id_of(item.job_id))

    def start(self, item: Claimed, prepared: Any) -> None:
        endpoint = endpoint_of(prepared.get("url", ""))
        wait_s = self.endpoints.begin(endpoint)
        if wait_s is not None:
            self._written(item, lambda: self.outbox.put_off(item, wait_s))
            return
        self.in_flight[item.execution_id] = endpoint
        threading.Thread(
            target=self._fly, args=(item, prepared), daemon=True, name=item.job_id
        ).start()

    def has_work(self) -> bool:
        return bool(self.in_flight)

    def advance(self) -> None:
        """Wait for something to happen: an attempt that landed says so by a message."""
        self._land()
        if self.in_flight and (message := self.next_message(WAIT_S)):
            self.handle(message)

    def flush(self, seconds: float) -> None:
        """Attempts that are nearly done may end; the others are handed back and made again."""
        end = time.monotonic() + seconds
        while self.in_flight and (left := end - time.monotonic()) > 0:
            self.next_message(left)
            self._land()
        self.due_changed.set()

    # --- one attempt, in its thread ---

    def _fly(self, item: Claimed, webhook: Mapping[str, Any]) -> None:
        begin = time.monotonic()
        try:
            self._attempt(item, webhook)
        except RedisError as error:  # stopping without a store: the lease runs out
            log.warning(
                "an attempt's end could not be written",
                id=request_id_of(item.job_id),
                error=str(error),
            )
        except Exception:  # its end is not written, so it may not be held on to: as Servant does
            log.exception("an attempt could not be ended, ending", id=request_id_of(item.job_id))
            os._exit(CRASH_EXIT)
        finally:
            self.landed.put((item.execution_id, time.monotonic() - begin))
            self.inbox.put(Stop())  # wakes the main thread

    def _attempt(self, item: Claimed, webhook: Mapping[str, Any]) -> None:
        request_id = request_id_of(item.job_id)
        try:
            sent = self.patiently(lambda: self.sender.send(request_id, webhook))
        except RedisError:
            raise
        except Exception as error:  # whatever a webhook holds, it must not stay here for ever
            log.exception("an attempt failed in an unforeseen way", id=request_id_of(item.job_id))
            sent = Sent(Outcome("retry", error=f"{type(error).__name__}: {error}"[:300]), b"")
        tries = webhook.get("failures", 0) + 1
        delay = delay_s(tries, self.schedule, sent.outcome.retry_after_s, self.draw)
        state = self._written(item, lambda: self.outbox.end(item, sent.outcome, sent.body, delay))
        log.info(
            state,
            id=request_id,
            attempt=item.job_id.rpartition("-")[2],
            **{"status": sent.outcome.status} if sent.outcome.status else {},
            **{"error": sent.outcome.error} if sent.outcome.error else {},
        )

    def _written(self, item: Claimed, end: Callable[[], str]) -> str:
        """Write an attempt's end and let the item go."""
        state = str(self.patiently(end))
        self.release(item)
        self.due_changed.set()
        return state

    def _land(self) -> None:
        """Give the places of attempts that are over back to their endpoints."""
        while True:
            try:
                execution_id, took_s = self.landed.get_nowait()
            except Empty:
                return
            self.endpoints.end(self.in_flight.pop(execution_id), took_s)

    # --- the clock's thread ---

    def _keep_time(self) -> None:
        while not self.pulse.stopping:
            self.due_changed.clear()
            try:
                next_s = self.patiently(self.outbox.queue_due)
            except RedisError:  # stopping
                return
            self.due_changed.wait(min(LOOK_S, LOOK_S if next_s is None else next_s))


def endpoint_of(url: str) -> str:
    """Whom an attempt would hold up; what is no URL holds up its own kind only."""
    try:
        return parse_url(url).endpoint
    except Forbidden:
        return "?"
