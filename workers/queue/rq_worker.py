"""RQ's worker as it is here: it waits for a store that is away, and leaves maintenance to us.

RQ's own ends where the store does not answer. Whatever of it asks the store while a worker runs is
asked again and again instead, until it answers or the worker is to stop.
"""

import time
from typing import Any, Final

from redis.exceptions import RedisError
from rq.command import handle_command, parse_payload
from rq.defaults import RQ_KEY_PREFIX as rq_prefix
from rq.worker import SimpleWorker

from workers.queue.patience import patiently
from workers.queue.pulse import Pulse
from workers.queue.serializer import MsgpackSerializer
from workers.worker_store import WorkerStore

WORKER_TTL_S: Final = 30  # RQ keeps a silent worker's registration for this and a minute
HEARTBEAT_S: Final = 10.0
SUSPENSION_S: Final = 1.0


class RqWorker(SimpleWorker):
    """Of one queue. What it runs, and how it gets that, is batch_worker.py's."""

    def __init__(self, store: WorkerStore, queue: str, *, name: str, pulse: Pulse) -> None:
        assert rq_prefix == store.keys.rq_prefix, f"rq was imported before the store: {rq_prefix}"
        self.pulse = pulse
        self.done_at: dict[str, float] = {}
        super().__init__(
            [queue],
            name=name,
            connection=store.blocking(WORKER_TTL_S),
            serializer=MsgpackSerializer,
            worker_ttl=WORKER_TTL_S,
            log_job_description=False,
        )
        self.store, self.queue_name = store, queue

    def patiently(self, call: Any) -> Any:
        return patiently(call, lambda: self.pulse.stopping, self.name)

    def _set_ip_address(self, connection: Any) -> None:
        """RQ's first command: the store may start beside us."""
        self.patiently(lambda: super(RqWorker, self)._set_ip_address(connection))

    def register_birth(self) -> None:
        """A worker of this name that RQ remembers is dead: the name is ours (slot.py).

        RQ's registers do not expire by themselves, and a store that lost them has new ones.
        """
        self.patiently(lambda: self.connection.delete(self.key))
        self.patiently(super().register_birth)
        self.patiently(self.store.keep)

    def subscribe(self) -> None:
        self.pubsub = self.connection.pubsub(ignore_subscribe_messages=True)  # type: ignore[no-untyped-call]
        self.patiently(
            lambda: self.pubsub.subscribe(
                **{
                    self.pubsub_channel_name: self.handle_payload,
                    self.store.keys.control: self.handle_control,
                }
            )
        )
        self.pubsub_thread = self.pubsub.run_in_thread(  # type: ignore[assignment]
            sleep_time=60, daemon=True, exception_handler=self._pubsub_exception_handler
        )

    def handle_payload(self, message: Any) -> None:
        payload = parse_payload(message)
        if payload["command"] in ("stop-job", "stop-execution"):
            self.stop_job(payload["job_id"])
        else:
            handle_command(self, payload)

    def stop_job(self, job_id: str) -> None:
        """RQ's stop-job command, in the pubsub thread."""
        raise NotImplementedError

    def handle_control(self, message: Any) -> None:
        """What scripts tell all workers, in the pubsub thread."""
        raise NotImplementedError

    def _pubsub_exception_handler(self, error: Exception, *_: Any) -> None:
        """The subscription comes back by itself with the connection; the loop must only go on."""
        if not isinstance(error, RedisError | OSError):
            raise error
        time.sleep(1.0)

    @property
    def should_run_maintenance_tasks(self) -> bool:
        return False  # the bookkeeper does it, and while a batch runs too

    # RQ asks the store three times around each job. A pool's jobs may last no longer than that, so
    # here it is asked as often as somebody who looks would notice.

    def heartbeat(self, timeout: int | None = None, pipeline: Any = None) -> None:
        """The bookkeeper's beats are heartbeats, too (beat.lua)."""
        if self.is_due("heartbeat", HEARTBEAT_S):
            self.patiently(lambda: super(RqWorker, self).heartbeat(timeout, pipeline))

    def set_state(self, state: str, pipeline: Any = None) -> None:
        if state != self._state or self.is_due("state", HEARTBEAT_S):
            self.patiently(lambda: super(RqWorker, self).set_state(state, pipeline))

    def check_for_suspension(self, burst: bool) -> None:
        """claim.lua looks at the flag itself: here it only becomes a state that people see."""
        if burst or self.is_due("suspension", SUSPENSION_S):
            self.patiently(lambda: super(RqWorker, self).check_for_suspension(burst))

    def is_due(self, what: str, every_s: float) -> bool:
        """Whether it was not done for so long; then it counts as done now."""
        now = time.monotonic()
        if now - self.done_at.get(what, float("-inf")) < every_s:
            return False
        self.done_at[what] = now
        return True
