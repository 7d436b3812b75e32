"""Enqueue a request and get its result by webhook: producer and receiver in one FastAPI app.

    LOCKSTEP_WEBHOOK_ALLOW=127.0.0.0/8 make start        # the node; in another terminal:
    python docs/examples/webhook.py "Once upon a time"

The receiver believes nothing that is not signed, and drops what it has seen: webhooks come at least
once, always with the same webhook-id.
"""

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn
from fastapi import FastAPI, Request, Response
from standardwebhooks import Webhook, WebhookVerificationError

from ingest.async_client import AsyncClient
from workers.settings import settings

PORT = int(sys.argv[2]) if len(sys.argv) > 2 else 8099
SECRET = settings().webhook_secret or (settings().home / "webhook_secret").read_text().strip()
seen: set[str] = set()


@asynccontextmanager
async def enqueue(app: FastAPI) -> AsyncIterator[None]:
    async with AsyncClient() as client:
        hook = {"url": f"http://127.0.0.1:{PORT}/result"}
        request_id = await client.enqueue(
            prompt=sys.argv[1], sla="batch", max_tokens=16, temperature=0, webhook=hook
        )
    print("accepted", request_id)
    yield


app = FastAPI(lifespan=enqueue)
server = uvicorn.Server(uvicorn.Config(app, port=PORT, log_level="warning"))


@app.post("/result")
async def result(request: Request) -> Response:
    try:
        event = Webhook(SECRET).verify(await request.body(), dict(request.headers))
    except WebhookVerificationError:
        return Response(status_code=401)
    if request.headers["webhook-id"] not in seen:
        seen.add(request.headers["webhook-id"])
        print(event["type"], event["data"]["id"], repr(event["data"]["text"]))
        server.should_exit = True  # an example has one request
    return Response(status_code=204)


server.run()
