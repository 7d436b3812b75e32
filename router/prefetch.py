"""The thread that brings a session's files on their way while its request still waits in a queue.

It only hurries: when it is late, fails, or has too much to do, the pool reads the files itself.
"""

import threading
from collections.abc import Callable
from queue import Full, Queue
from typing import Final

from workers.log import logger

WAITING_MAX: Final = 64  # sessions; what comes beyond is read by its pool

log = logger("router")
Fetch = Callable[[str, str], object]


class Prefetch:
    """ask() never waits and never fails. make_fetch is called at the first session that comes."""

    def __init__(self, make_fetch: Callable[[], Fetch]) -> None:
        self.make_fetch = make_fetch
        self.asked: Queue[tuple[str, str]] = Queue(WAITING_MAX)
        self.thread: threading.Thread | None = None

    def ask(self, tenant: str, session_id: str) -> None:
        """The session's pages will be wanted soon."""
        try:
            self.asked.put_nowait((tenant, session_id))
        except Full:
            return
        if self.thread is None:
            self.thread = threading.Thread(target=self.serve, name="prefetch", daemon=True)
            self.thread.start()

    def serve(self) -> None:
        fetch: Fetch | None = None
        while True:
            session = self.asked.get()
            try:
                fetch = self.make_fetch() if fetch is None else fetch
                fetch(*session)
            except Exception as error:  # a disk that fails is the pool's business
                log.debug("not prefetched", session=session[1], error=str(error)[:200])
            finally:
                self.asked.task_done()
