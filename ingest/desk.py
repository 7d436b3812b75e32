"""What every route works with: the store, the model's text side, the token streams, the metrics.

A request is accepted in three steps, in one helper thread: admit (pure), a look at queues and pools
(access/doorkeeper.py), one script in Redis.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

import msgspec
from anyio.to_thread import run_sync
from redis.exceptions import RedisError

from ingest.access.doorkeeper import Doorkeeper, too_much
from ingest.access.gate import Gate
from ingest.access.keys import Key
from ingest.errors import ApiError
from ingest.jobs.past import follow, heard
from ingest.metrics.registry import Metrics
from ingest.tokens import Entry, TokenReader
from router.admit import Door, Reject, admit
from router.answer_form import ANSWER_FORM
from router.not_now import TOO_MUCH
from router.prompt import EFFORT, VARIABLES
from workers.address import Networks, parse_networks
from workers.clock import now_ms
from workers.log import logger
from workers.settings import Settings
from workers.store import Store
from workers.text.text_model import TextModel
from workers.wire import EndEvent, Keys, Request

if TYPE_CHECKING:
    from workers.session.files import KvTier

NOT_KEPT: Final = ("overloaded", "queue_full")
PATIENT: Final = "batches"  # a door that asks again: a full node has broken no promise yet
RETRY_LOADING_S: Final = 3
CANCEL_TRIES: Final = 5


@dataclass(frozen=True)
class Receipt:
    """An accepted request.

    is_new  False when an earlier request has the same id: its result counts
    status  what the store says of it now
    """

    request: Request
    is_new: bool
    status: str


class Desk:
    """One for the process; made before the server starts."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.keys = Keys(settings.key_prefix, settings.classes.names)
        self.store = Store.of(settings)
        self.reader = TokenReader(settings.url, self.keys)
        self.metrics = Metrics(settings.classes, settings.node)
        self.allow: Networks = parse_networks(settings.webhook_allow)
        self.text: TextModel | None = None
        self.doorkeeper = Doorkeeper(settings, self.store)
        self.gate = Gate(settings, self.store)
        self.visitors = Visitors(self)
        self.started_s = int(time.time())
        self._tier: KvTier | None = None
        self._tier_lock = Lock()

    def text_model(self) -> TextModel:
        """The served model's text side. Raises ApiError 503 while it is not there yet."""
        if self.text is None:
            raise ApiError(
                503,
                f"model {self.settings.model!r} is being prepared; ask again",
                code="model_loading",
                retry_after_s=RETRY_LOADING_S,
            )
        return self.text

    def tier(self) -> "KvTier":
        """The files of sessions, opened when they are first asked for. Not in the event loop."""
        with self._tier_lock:
            if self._tier is None:
                from workers.session.files import open_tier

                self._tier = open_tier(self.settings)
            return self._tier

    async def accept(self, fields: Mapping[str, Any], *, key: Key, door: str) -> Receipt:
        """Admits and accepts, on the account of the key's tenant, whatever the fields say.

        Raises ApiError, or redis' errors when the store is away.
        """
        receipt = await run_sync(self._accept, {**fields, "tenant": key.tenant}, key, door)
        self.metrics.accepted.labels(receipt.request.sla, door).inc()
        return receipt

    def _accept(self, fields: Mapping[str, Any], key: Key, door: str) -> Receipt:
        request = self.admitted(fields, self.text_model())
        try:
            self.doorkeeper.check(request)
        except ApiError as refused:
            if not self.store.redis.exists(self.keys.job(request.id)):  # else it was taken before
                raise self.refused(refused, request.sla, door) from None
        accepted = self.store.accept(
            request_id=request.id,
            tenant=request.tenant,
            sla=request.sla,
            body=_packed(fields, request),
            num_tokens=len(request.token_ids) + request.params.max_tokens,
            key=key.id,
            key_limits=key.limits.as_tuple,
            webhook=request.webhook,
            metadata=request.metadata,
        )
        if accepted.status in TOO_MUCH:
            raise self.refused(too_much(accepted.status, accepted.retry_ms), request.sla, door)
        self.doorkeeper.took(request.sla)
        return Receipt(request, accepted.is_new, accepted.status)

    def refused(self, error: ApiError, sla: str, door: str) -> ApiError:
        """The same, counted: what a full node refuses is a promise of the class not kept."""
        code = error.code or "refused"
        if door == PATIENT:
            return error
        self.store.count(self.keys.refusals, code)
        if code in NOT_KEPT:
            self.store.count(self.keys.promises, f"{sla} {code}")
        return error

    def admitted(self, fields: Mapping[str, Any], text: TextModel) -> Request:
        """The request in these fields. Raises ApiError that names the field."""
        door = Door(
            text=text,
            now_ms=now_ms(),
            allow=self.allow,
            max_sequence_tokens=self.doorkeeper.longest(),
            classes=self.keys.classes,
        )
        result = admit(fields, door, sla=None, entry_id=None, plain=False)
        if isinstance(result, Reject):
            self.store.count(self.keys.refusals, result.code)
            status = 404 if result.code == "model_not_found" else 400
            raise ApiError(status, result.reason, param=result.field, code=result.code)
        return result

    async def cancel(self, request_id: str) -> str:
        """Store.cancel, asked again while the store is away."""
        for attempt in range(CANCEL_TRIES):
            try:
                return await run_sync(self.store.cancel, request_id)
            except (RedisError, OSError) as error:
                logger("api").warning("cancel waits for the store", id=request_id, error=str(error))
                await asyncio.sleep(1 + attempt)
        return "unknown"


class Visit:
    """One client that waits for the answer to a request."""

    def __init__(self, visitors: "Visitors", receipt: Receipt) -> None:
        self.visitors = visitors
        self.request = receipt.request
        self.is_new = receipt.is_new
        self.is_here = True

    def events(self) -> AsyncIterator[list[Entry]]:
        """The request's events from the first."""
        desk = self.visitors.desk
        if self.is_new:
            return heard(desk.store, desk.reader, self.request.id)
        return follow(desk.store, desk.reader, self.request.id)

    def ended(self, end: EndEvent) -> None:
        """The answer is complete."""
        self.leave()

    def leave(self) -> bool:
        """The answer is complete, or the client has gone.

        True when nobody is left and a visitor brought the request.
        """
        was_here, self.is_here = self.is_here, False
        return was_here and self.visitors.leave(self.request.id)

    async def gone(self) -> None:
        """The client left before its answer was complete."""
        if self.leave():
            self.visitors.desk.metrics.disconnects.inc()
            await self.visitors.desk.cancel(self.request.id)


class Visitors:
    """Who waits for which request: the last one to leave cancels it, if a visitor brought it.

    A job that somebody only watches is not theirs to cancel.
    """

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.waiting: Counter[str] = Counter()
        self.brought: set[str] = set()

    def enter(self, receipt: Receipt) -> Visit:
        self.waiting[receipt.request.id] += 1
        if receipt.is_new:
            self.brought.add(receipt.request.id)
        return Visit(self, receipt)

    def leave(self, request_id: str) -> bool:
        self.waiting[request_id] -= 1
        if self.waiting[request_id] > 0:
            return False
        del self.waiting[request_id]
        is_ours = request_id in self.brought
        self.brought.discard(request_id)
        return is_ours


def _packed(fields: Mapping[str, Any], request: Request) -> bytes:
    """What goes on the stream: the client's fields, the prompt as token ids: it is encoded once.
    So is what made it: tools are in it, and their grammar stands beside it.

    A session's messages stay messages: what they make is known when their turn comes. The class is
    the stream's: it may be promoted to another one before anybody has read it.
    """
    if request.messages:
        body = {k: v for k, v in fields.items() if k not in ("messages", "sla")}
        body["messages"] = request.messages
    else:
        left_out = ("prompt", "messages", "sla", VARIABLES, EFFORT, *ANSWER_FORM)
        body = {k: v for k, v in fields.items() if k not in left_out}
        body["token_ids"] = request.token_ids
        if request.grammar:
            body["grammar"] = request.grammar
    try:
        return msgspec.msgpack.encode(body)
    except OverflowError:  # in a field that admission ignores
        reason = "a number of the body has more than 64 bits"
        raise ApiError(400, reason, code="bad_request") from None
