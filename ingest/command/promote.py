"""`lockstep promote`: a request gets another class, while it waits or while it runs."""

import json
import time
from typing import Annotated

from typer import Argument, Option

from ingest.client import Client
from ingest.command.failure import USAGE, Failure
from ingest.command.request import POLL_S, UNKNOWN_S


def promote(
    request_id: Annotated[
        str, Argument(metavar="ID", help="The request's id.", show_default=False)
    ],
    sla: Annotated[str, Option(help="The class it is to have.", show_default=False)],
    as_json: Annotated[bool, Option("--json", help="Print JSON.")] = False,
) -> None:
    """Give a request another class: promoted, demoted, same (it has it); 1 when it has ended."""
    client, begin = Client(), time.monotonic()
    try:
        told = client.promote(request_id, sla)
        while told.result == "unknown" and time.monotonic() - begin < UNKNOWN_S:
            time.sleep(POLL_S)
            told = client.promote(request_id, sla)
    except ValueError as error:
        raise Failure(str(error), USAGE) from None
    if told.result == "unknown":
        raise Failure(f"nothing is known of a request {request_id!r}")
    if as_json:
        print(json.dumps({"id": request_id, "result": told.result, "sla": sla, "was": told.was}))
    if told.result == "ended":
        raise Failure(f"{request_id} has ended: its class is {told.was} for ever")
    if not as_json:
        print(told.result)
