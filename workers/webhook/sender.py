"""Makes one attempt from what the store holds: reads the result, composes, signs, posts."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from workers.store import Store
from workers.trace.spans import onward
from workers.webhook.deliver import Outcome, Way, attempt
from workers.webhook.event import compose, compose_start, message_id, split_name
from workers.webhook.sign import NoSecret, headers, read_secrets
from workers.wire import DEFAULT_SECRET, split_id

GONE: Final = "the result expired before it could be posted"


def utc_now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True)
class Sent:
    """An attempt that is over, and the body it had (empty: there was none to post)."""

    outcome: Outcome
    body: bytes


class Sender:
    """Safe to use from several threads. now: the clock of the webhook-timestamp, aware, in UTC."""

    def __init__(
        self,
        store: Store,
        home: Path,
        configured_secret: str | None,
        way: Way,
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        self.store, self.home, self.configured_secret = store, home, configured_secret
        self.way, self.now = way, now

    def send(self, name: str, webhook: Mapping[str, Any]) -> Sent:
        """webhook: the fields of lockstep:webhook:NAME. Raises redis errors."""
        if "url" not in webhook:
            return Sent(Outcome("dead", error=GONE), b"")
        request_id, is_start = split_name(name)
        job = self.store.job(request_id)
        if job is not None and is_start and "started_ms" in job:
            body = compose_start(request_id, job)
        elif job is not None and not is_start and "ended_ms" in job:
            body = compose(request_id, job)
        else:
            body = webhook.get("body", "").encode()  # a replay may outlive the result
        if not body:
            return Sent(Outcome("dead", error=GONE), b"")
        try:
            name = webhook.get("secret_id", DEFAULT_SECRET)
            tenant = split_id(request_id)[0]
            secrets = read_secrets(name, self.home, self.configured_secret, tenant)
        except NoSecret as error:  # somebody may still put it there
            return Sent(Outcome("retry", error=str(error)), body)
        identity = message_id(request_id, webhook["status"])
        signed = headers(identity, body, secrets, self.now())
        if job is not None and (parent := onward(request_id, job)):
            signed["traceparent"] = parent
        return Sent(attempt(webhook["url"], body, signed, self.way), body)
