"""The thread that waits for the queue's bell and claims, so that no step ever waits for Redis."""

import threading
from collections.abc import Callable
from typing import Final

from redis.exceptions import RedisError

from workers.log import logger
from workers.queue.pulse import Pulse
from workers.queue.servant import Servant
from workers.worker_store import WorkerStore

log = logger("queue")
BELL_S: Final = 5.0  # a ring that its waker took to the grave is made good after this
FULL_S: Final = 0.1  # then something urgent may have come, for which another makes way
PAUSE_S: Final = 1.0  # while the store is away


class Listener(Servant):
    """claim takes what there is room for; has_room says whether there is any."""

    def __init__(
        self,
        store: WorkerStore,
        queue: str,
        pulse: Pulse,
        *,
        claim: Callable[[], int],
        has_room: Callable[[], bool],
    ) -> None:
        super().__init__(f"listener {queue}")
        self.store, self.bell, self.pulse = store, store.keys.bell(queue), pulse
        self.claim, self.has_room = claim, has_room
        self.room = threading.Event()

    def wake(self) -> None:
        """There may be room again."""
        self.room.set()

    def serve(self) -> None:
        client = self.store.blocking(BELL_S)
        while not self.pulse.stopping:
            try:
                self.claim()
                if self.has_room():
                    client.blpop([self.bell], timeout=BELL_S)
                else:
                    self.room.wait(FULL_S)
                    self.room.clear()
            except RedisError as error:
                if not self.pulse.stopping:
                    log.debug("no bell, no store", error=str(error)[:200])
                    self.room.wait(PAUSE_S)
