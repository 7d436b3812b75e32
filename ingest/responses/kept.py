"""Responses that are kept, for GET and for those that follow them: one hash each in Redis.

    lockstep:response:ID    response    the object as it was last known, JSON
                            input       the items that were sent, JSON
                            before      ids of the responses that it follows, the first one first
                            session_id  the session that the node keeps of the conversation
                            next        the response that goes on with that session; absent: none

It lives as long as results do, and longer while others follow it. The request itself is the job of
the same id.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any, Final, cast

import msgspec

from ingest.shapes import Json
from workers.store import Store

RESPONSE_ID: Final = re.compile(r"resp_[0-9a-f]{24,32}(-[0-9]{1,6})?")  # and no other tenant's

encode = msgspec.json.Encoder().encode
decode = msgspec.json.decode


class Kept(msgspec.Struct):
    """One kept response. id: the tenant's own."""

    id: str
    response: Json
    input: list[Json]
    before: list[str]
    session_id: str = ""

    @property
    def items(self) -> list[Json]:
        """What was sent and what was answered."""
        output: list[Json] = self.response.get("output", [])
        return [*self.input, *output]


class Shelf:
    """All kept responses of a tenant. Its methods ask the store."""

    def __init__(self, store: Store, tenant: str) -> None:
        self.store, self.tenant = store, tenant

    def key(self, response_id: str) -> str:
        return self.store.keys.response(self.tenant, response_id)

    def put(self, kept: Kept) -> None:
        fields = {
            "response": encode(kept.response),
            "input": encode(kept.input),
            "before": " ".join(kept.before),
            "session_id": kept.session_id,
        }
        with self.store.redis.pipeline(transaction=True) as pipeline:
            pipeline.hset(self.key(kept.id), mapping=cast(dict[Any, Any], fields))
            pipeline.expire(self.key(kept.id), self.store.result_ttl_s)
            pipeline.execute()

    def end(self, response_id: str, response: Json) -> None:
        """What it became; nothing when it was deleted meanwhile."""
        key, told = self.key(response_id), encode(response)
        self._if_there(key, lambda pipeline: pipeline.hset(key, "response", told))

    def read(self, response_ids: Sequence[str]) -> list[Kept | None]:
        """Each of them, or None; whoever is asked for stays longer."""
        if not all(map(RESPONSE_ID.fullmatch, response_ids)):
            return [None for _ in response_ids]
        with self.store.redis.pipeline(transaction=False) as pipeline:
            for response_id in response_ids:
                pipeline.hgetall(self.key(response_id))
                pipeline.expire(self.key(response_id), self.store.result_ttl_s)
            replies = pipeline.execute()[::2]
        pairs = zip(response_ids, replies, strict=True)
        return [_parsed(response_id, raw) if raw else None for response_id, raw in pairs]

    def follows(self, previous_id: str, response_id: str) -> bool:
        """Whether this one goes on with the session of that one: the first that asks does."""
        key = self.key(previous_id)
        self._if_there(key, lambda pipeline: pipeline.hsetnx(key, "next", response_id))
        return bool(self.store.redis.hget(key, "next") == response_id.encode())

    def _if_there(self, key: str, change: Callable[[Any], Any]) -> None:
        """Changes a hash: one that is deleted at the same time does not come again, a part of it,
        for ever.
        """

        def attempt(pipeline: Any) -> None:
            is_there = pipeline.exists(key)
            pipeline.multi()
            if is_there:
                change(pipeline)

        self.store.redis.transaction(attempt, key)

    def delete(self, response_id: str) -> bool:
        """Whether there was one."""
        is_one = RESPONSE_ID.fullmatch(response_id) is not None
        return is_one and bool(self.store.redis.delete(self.key(response_id)))


def _parsed(response_id: str, raw: dict[bytes, bytes]) -> Kept:
    return Kept(
        id=response_id,
        response=decode(raw[b"response"]),
        input=decode(raw[b"input"]),
        before=raw[b"before"].decode().split(),
        session_id=raw[b"session_id"].decode(),
    )
