"""`python -m workers.webhook`: posts webhooks until it is told to stop, and hands back then."""

import os
import sys
from typing import TYPE_CHECKING

from workers.address import parse_networks
from workers.log import logger
from workers.settings import Settings, settings_or_exit
from workers.wire import WEBHOOKS
from workers.worker_store import WorkerStore

if TYPE_CHECKING:
    from workers.webhook.worker import WebhookWorker


def main() -> int:
    try:
        worker = build_worker(settings_or_exit())
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    logger(WEBHOOKS).info("ready", worker=worker.name)
    worker.work()
    return 0


def build_worker(config: Settings) -> "WebhookWorker":
    """Raises ValueError with a sentence for a setting that cannot be used."""
    store = WorkerStore.of(config)  # before rq is imported: it reads its key prefix from there
    from workers.queue.slot import take_slot
    from workers.trace.export import start as start_traces
    from workers.webhook.deliver import Way
    from workers.webhook.schedule import parse_schedule
    from workers.webhook.sender import Sender
    from workers.webhook.sign import make_secret
    from workers.webhook.worker import WebhookWorker

    way = Way(allow=parse_networks(config.webhook_allow))
    schedule = parse_schedule(config.webhook_retries)
    if config.webhook_secret is None:
        make_secret(config.home)
    sender = Sender(store, config.home, config.webhook_secret, way)
    worker = WebhookWorker(store, sender, schedule, name=take_slot(config.home, WEBHOOKS).name)
    if config.traces:
        start_traces(WorkerStore.of(config), worker.name, config.traces)
    return worker


if __name__ == "__main__":
    os._exit(main())  # at once: taking the interpreter apart costs up to a second
