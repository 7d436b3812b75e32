"""`lockstep verify`: compute an answer again and prove it equal, token by token.

Reads a request and its journal from the store, runs the request in an engine of its own, and
compares every token id and every link of the digest chain (law one). Exit codes: 0 equal, 1 not,
2 there is nothing to compare, or nothing to compare it with.
"""

import json
from dataclasses import asdict, dataclass
from typing import Annotated

import msgspec
import typer

from ingest.command.failure import FAILED, USAGE, Failure
from ingest.command.local_engine import Processor, local_engine, model_folder
from workers.engine.engine import Engine
from workers.engine.limits import blocks_for
from workers.settings import settings
from workers.store import Store
from workers.wire import EndEvent, Request, TokenEvent

Event = TokenEvent | EndEvent


@dataclass(frozen=True, slots=True)
class Difference:
    """The first place where the journal and the computation part; an end has no token."""

    index: int
    recorded: str
    computed: str


def verify_command(
    request_id: Annotated[str, typer.Argument(help="Id of the request, as its keys use it.")],
    pool: Annotated[str, typer.Option(help="What computes it again: cpu, gpu.")] = "cpu",
    threads: Annotated[int, typer.Option(min=0, help="Of the CPU; 0: as configured.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Compute an answer again and compare every token and its digest.

    Exit codes: 0 equal, 1 not, 2 nothing to compare.
    """
    config = settings()
    request, recorded = read_answer(Store.of(config), request_id)
    processor = Processor(pool, threads or config.num_threads, config.max_step_tokens)
    try:
        with model_folder(request.model, config.home) as folder:
            num_tokens = len(request.token_ids) + request.params.max_tokens
            engine = local_engine(folder, processor, max_batch=1, num_blocks=blocks_for(num_tokens))
            difference = first_difference(engine, request, recorded)
    except Failure as failure:
        raise Failure(str(failure), USAGE) from failure
    say(request_id, recorded, difference, as_json)
    raise typer.Exit(0 if difference is None else FAILED)


def read_answer(store: Store, request_id: str) -> tuple[Request, list[Event]]:
    """The request and its journal: at least one token. Raises Failure."""
    job = store.job(request_id)
    if job is None:
        raise Failure(f"there is no request {request_id!r}", USAGE)
    if "request" not in job:
        raise Failure(f"request {request_id!r} is {job['status']} and was never admitted", USAGE)
    request = msgspec.msgpack.decode(job["request"], type=Request)
    if request.messages and not request.composed:
        raise Failure(f"request {request_id!r} is {job['status']} and waits for its session", USAGE)
    recorded = [event for _, event in store.tokens(request_id)]
    if not recorded or not isinstance(recorded[0], TokenEvent):
        raise Failure(f"request {request_id!r} is {job['status']} and has no tokens", USAGE)
    return request, recorded


def first_difference(engine: Engine, request: Request, recorded: list[Event]) -> Difference | None:
    """None: all that was recorded comes again. What would come after it is not looked at."""
    engine.add(msgspec.structs.replace(request, deadline_ms=None))
    index = 0
    while engine.has_work():
        for output in engine.step():
            if index == len(recorded):
                return None
            then, now = described(recorded[index]), described(output.event)
            if then != now and not cut_short(recorded[index]):
                return Difference(index, then, now)
            index += 1
    return None


def cut_short(event: Event) -> bool:
    """An end that came from outside: it says nothing about the tokens that would have come."""
    if isinstance(event, TokenEvent) or event.status == "finished":
        return False
    return event.code != "numeric_error"


def described(event: Event) -> str:
    """What of an event must be equal, in words."""
    if isinstance(event, TokenEvent):
        return f"token {event.token_id}, digest {event.digest}"
    return f"end {event.finish_reason or event.code or event.status}, digest {event.digest}"


def say(
    request_id: str, recorded: list[Event], difference: Difference | None, as_json: bool
) -> None:
    num_tokens = sum(isinstance(event, TokenEvent) for event in recorded)
    if as_json:
        first = asdict(difference) if difference else None
        said = {"id": request_id, "equal": difference is None, "tokens": num_tokens}
        print(json.dumps(said | {"digest": recorded[-1].digest, "first_difference": first}))
    elif difference is None:
        print(f"equal: {num_tokens} tokens, digest {recorded[-1].digest}")
    else:
        print(f"differs at output token {difference.index}")
        print(f"  recorded  {difference.recorded}\n  computed  {difference.computed}")
