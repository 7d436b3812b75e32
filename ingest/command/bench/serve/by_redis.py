"""A load by Redis alone: XADD on the stream of the class, tokens from the journals."""

import asyncio
from collections.abc import Sequence

import msgspec
import redis.asyncio
from redis.exceptions import RedisError

from ingest.command.bench.serve.drive import Clock
from ingest.command.bench.serve.load import Prompts
from ingest.command.bench.serve.record import Record
from ingest.tokens import TokenReader, cancelled
from router.simulator.workload import Wish
from workers.store import Store
from workers.wire import EndEvent


class ByRedis:
    """To be made in the event loop. run: put before each id."""

    def __init__(self, store: Store, prompts: Prompts, run: str) -> None:
        self.store, self.prompts, self.run = store, prompts, run
        self.client = redis.asyncio.Redis(connection_pool=store.clients.async_pool())
        self.reader = TokenReader(store.url, store.keys)
        self.reading = asyncio.create_task(self.reader.run())

    async def ask(self, wish: Wish, record: Record, clock: Clock) -> None:
        record.id = f"{self.run}-{wish.id}"
        fields = {
            "v": 1,
            "id": record.id,
            "token_ids": self.prompts.of(wish),
            "max_tokens": wish.max_tokens,
            "temperature": 0,
        }
        stream = self.store.keys.requests(wish.sla)
        try:
            await self.client.xadd(stream, {"m": msgspec.msgpack.encode(fields)})
        except (RedisError, OSError) as error:
            return record.fail(f"not taken: {error}")
        async for entries in self.reader.listen(record.id):
            now_s = clock.now()
            for _, event in entries:
                if isinstance(event, EndEvent):
                    return self.end(event, record, now_s)
                record.tokens_s.append(now_s)
        return None

    def end(self, event: EndEvent, record: Record, now_s: float) -> None:
        record.end_s, record.digest, record.server_ms = now_s, event.digest, event.ttft_ms
        if event.usage is not None:
            record.output_tokens = event.usage.output_tokens
        if event.status == "finished":
            record.status = "finished"
        else:
            record.fail(event.code or event.status, event.retry_after_s)

    async def close(self, left: Sequence[Record]) -> None:
        await cancelled(self.reading)
        await self.client.aclose()
        for record in left:
            self.store.cancel(record.id, unseen=True)

    def look(self, records: Sequence[Record]) -> None:
        """What the node says of where each one ran."""
        for record in records:
            job = self.store.job(record.id) or {}
            record.pool, record.plan = job.get("pool"), job.get("plan")
            record.predicted_ms = job.get("predicted_ttft_ms")
            record.moves = job.get("moves", 0)
