"""The webhooks in Redis: what is known of each, when it is due, and how an attempt ends there.

    request ends ─► RQ job wh-ID-1 ─claim─► attempt 1 ─► delivered
                                               │  └────► dead ──► lockstep:dead ──replay──┐
                                               ▼                                          ▼
                    RQ job wh-ID-2 ◄─due── lockstep:webhooks:due                   RQ job wh-ID-N

Every arrow is one script; the ends of an attempt are fenced by its lease. A pending webhook is in
the sorted set at all times: while its RQ job waits or runs, an hour ahead, as a safety net.
"""

from typing import Final, cast

from workers.webhook.deliver import Outcome
from workers.worker_store import Claimed, WorkerStore

DUE_BATCH: Final = 100
NOT_TRIED: Final = Outcome("retry")


class Outbox:
    """Safe to use from several threads."""

    def __init__(self, store: WorkerStore) -> None:
        self.store, self.keys = store, store.keys

    def queue_due(self) -> float | None:
        """Queue the attempts whose time has come, and those whose RQ job got lost.

        Gives the seconds until the next look is due, None when no webhook is pending.
        """
        keys = [self.keys.webhooks_due, self.keys.webhook_queue]
        while True:
            moved, next_ms = cast(list[int], self.store.run("webhook_due", keys, DUE_BATCH))
            if moved < DUE_BATCH:
                return None if next_ms < 0 else next_ms / 1000

    def end(
        self, claim: Claimed, outcome: Outcome, body: bytes = b"", delay_s: float | None = None
    ) -> str:
        """The attempt is over. delay_s: until the next one; None: there is no next one.

        Gives the webhook's state after it, or "lost" when somebody else holds the lease.
        """
        verdict: str = outcome.kind
        if verdict == "retry" and delay_s is None:
            verdict = "dead"
        kept = body if verdict == "dead" else b""
        return self._end(claim, verdict, delay_s or 0.0, outcome, kept)

    def put_off(self, claim: Claimed, delay_s: float) -> str:
        """Not tried now: its turn comes later, and no attempt is counted."""
        return self._end(claim, "defer", delay_s, NOT_TRIED, b"")

    def _end(
        self, claim: Claimed, verdict: str, delay_s: float, outcome: Outcome, body: bytes
    ) -> str:
        request_id = request_id_of(claim.job_id)
        keys = [self.keys.webhook(request_id), self.keys.webhooks_due]
        named = [request_id, claim.job_id, claim.execution_id, verdict]
        status = "" if outcome.status is None else outcome.status
        told = (int(delay_s * 1000), status, outcome.error, body)
        return cast(bytes, self.store.run("webhook_end", keys, *named, *told)).decode()


def request_id_of(job_id: str) -> str:
    """The request whose webhook the RQ job wh-ID-N is an attempt of."""
    return job_id.removeprefix("wh-").rpartition("-")[0]
