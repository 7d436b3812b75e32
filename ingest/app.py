"""The HTTP application: its routes by theme, one shape of error, and the tasks beside them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from anyio.to_thread import run_sync
from fastapi import FastAPI

from ingest import errors, openapi
from ingest.anthropic import routes as anthropic
from ingest.batches import file_routes as files
from ingest.batches import routes as batches
from ingest.batches.clerk import Clerk
from ingest.dashboard import feed, page
from ingest.desk import Desk
from ingest.health import routes as health
from ingest.health.pulse import StallWatch
from ingest.jobs import listing
from ingest.jobs import routes as jobs
from ingest.metrics import routes as metrics
from ingest.openai import models
from ingest.openai import routes as openai
from ingest.responses import routes as responses
from ingest.sessions import routes as sessions
from ingest.tokens import cancelled
from workers.log import logger
from workers.text.text_model import TextModel

MODEL_RETRY_S = 1.0
APIS = (openai, models, responses, anthropic)  # those that clients know from elsewhere
THEMES = (*APIS, jobs, listing, sessions, files, batches, health, metrics, feed, page)


def create_app(desk: Desk) -> FastAPI:
    """The application over one desk."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        running = (desk.reader.run(), load_text(desk), app.state.clerk.run())
        tasks = [asyncio.create_task(work) for work in running]
        yield
        await cancelled(*tasks)

    app = FastAPI(
        title="Lockstep", lifespan=lifespan, docs_url=None, redoc_url=None, redirect_slashes=False
    )
    app.state.desk = desk
    app.state.watch = StallWatch()
    app.state.clerk = Clerk(desk)
    app.state.feed = feed.Feed(desk)
    for theme in THEMES:
        app.include_router(theme.routes)
    errors.install(app)
    openapi.install(app, desk.keys.classes)
    return app


async def load_text(desk: Desk) -> None:
    """Loads the model's text side as soon as the model is there; until then requests get 503."""
    folder = desk.settings.home / "models" / desk.settings.model
    has_told = False
    while desk.text is None:
        try:
            desk.text = await run_sync(TextModel.load, folder)
        except OSError:
            if not has_told:
                logger("api").info("waiting for the model", model=desk.settings.model)
            has_told = True
            await asyncio.sleep(MODEL_RETRY_S)
