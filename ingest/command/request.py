"""`lockstep enqueue`, `result`, `stream` and `cancel`: a request from the shell, through Redis."""

import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
from typer import Argument, Exit, Option

from ingest.client import Client, Overloaded
from ingest.command.failure import FAILED, NOT_YET, USAGE, Failure
from router.fields import deadline_of, session_of
from router.refusal import Refused
from router.sampling import sampling_params
from workers.wire import EndEvent, TokenEvent

POLL_S: Final = 0.1
TOKENS_MAX: Final = 2**31 - 1  # of any context, and of any vocabulary
UNKNOWN_S: Final = 2.0  # how long a request may be unknown: its sender may be a moment ahead of us

Id = Annotated[str, Argument(metavar="ID", help="The request's id.", show_default=False)]
AsJson = Annotated[bool, Option("--json", help="Print JSON.")]


def enqueue(
    prompt: Annotated[
        str | None, Argument(help="The prompt; - reads it from stdin.", show_default=False)
    ] = None,
    messages: Annotated[
        str | None, Option(help="A conversation in place of a prompt: JSON, or @FILE.")
    ] = None,
    chat: Annotated[
        bool, Option("--chat", help="The prompt is what a user says to an assistant.")
    ] = False,
    sla: Annotated[
        str, Option(help="realtime, standard, batch, or a class of lockstep.toml.")
    ] = "standard",
    id: Annotated[str | None, Option(help="Idempotency key; absent: one is made up.")] = None,
    max_tokens: Annotated[int | None, Option(help="Output tokens at most.")] = None,
    temperature: Annotated[float | None, Option(help="0 is greedy.")] = None,
    top_p: Annotated[float | None, Option()] = None,
    top_k: Annotated[int | None, Option()] = None,
    seed: Annotated[int | None, Option()] = None,
    stop: Annotated[list[str] | None, Option(help="Where to stop; may be repeated.")] = None,
    deadline_ms: Annotated[int | None, Option(help="Expires so long after arrival.")] = None,
    webhook: Annotated[str | None, Option(help="URL the result is posted to.")] = None,
    patience: Annotated[
        float | None, Option(min=0, metavar="SECONDS", help="Wait so long while the class is full.")
    ] = None,
    field: Annotated[
        list[str] | None, Option(metavar="NAME=JSON", help="Any other field of a request.")
    ] = None,
    wait: Annotated[bool, Option("--wait", help="Print the text as it comes.")] = False,
    as_json: AsJson = False,
) -> None:
    """Put a request on the stream of its class and print its id."""
    named = {
        "max_tokens": max_tokens,
        "temperature": temperature,
        "top_p": top_p,
        "top_k": top_k,
        "seed": seed,
        "stop": stop or None,
        "deadline_ms": deadline_ms,
        "webhook_url": webhook,
    }
    client = Client()
    source = prompt_fields(prompt, messages, chat)
    try:
        fields = {**named, **source, **more_fields(field)}
        check({name: value for name, value in fields.items() if value is not None})
        request_id = client.enqueue(sla=sla, id=id, patience_s=patience, **fields)
    except Overloaded as error:
        raise Failure(str(error), NOT_YET) from None
    except (ValueError, OverflowError, Refused) as error:
        raise Failure(str(error), USAGE) from None
    if wait:
        show_stream(client, request_id, "0-0", as_json)
    else:
        print(json.dumps({"id": request_id, "sla": sla}) if as_json else request_id)


def check(fields: Mapping[str, Any]) -> None:
    """What is seen to be wrong without the model is refused here. Raises Refused, as the router."""
    deadline_of(fields, 0)
    session_of(fields)
    sampling_params(
        fields,
        request_id="",
        room=TOKENS_MAX,
        why_room="no context is longer",
        vocab_size=TOKENS_MAX,
    )


def prompt_fields(prompt: str | None, messages: str | None, chat: bool) -> dict[str, Any]:
    """prompt or messages, of which there must be one."""
    if (prompt is None) == (messages is None):
        raise Failure("give a prompt or --messages, one of them", USAGE)
    if messages is not None:
        raw = read_file(messages[1:]) if messages.startswith("@") else messages
        return {"messages": parse(raw, "--messages")}
    text = sys.stdin.read() if prompt == "-" else prompt
    return {"messages": [{"role": "user", "content": text}]} if chat else {"prompt": text}


def read_file(name: str) -> str:
    try:
        return Path(name).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise Failure(f"--messages: {error}", USAGE) from None


def more_fields(pairs: list[str] | None) -> dict[str, Any]:
    """NAME=JSON, or NAME=text where that is no JSON."""
    fields = {}
    for pair in pairs or ():
        name, equals, value = pair.partition("=")
        if not equals:
            raise Failure(f"--field: must be NAME=JSON, got {pair!r}", USAGE)
        try:
            fields[name] = json.loads(value)
        except ValueError:
            fields[name] = value
    return fields


def parse(raw: str, option: str) -> Any:
    try:
        return json.loads(raw)
    except ValueError as error:
        raise Failure(f"{option}: is not JSON: {error}", USAGE) from None


def result(
    request_id: Id,
    wait: Annotated[float, Option(metavar="SECONDS", help="Wait so long for the end.")] = 0.0,
    as_json: AsJson = False,
) -> None:
    """Print the text of a request that has ended; 4 when it has not ended yet."""
    client = Client()
    try:
        end = client.result(request_id, timeout_s=max(wait, 0.001))
    except TimeoutError:
        job = client.job(request_id)
        if job is None:
            raise unknown(request_id) from None
        raise Failure(f"{request_id} has not ended: it is {job['status']}", NOT_YET) from None
    if as_json:
        print(json.dumps(end_object(request_id, end)))
    elif end.status == "finished":
        print(end.text)
    leave(request_id, end, as_json)


def stream(
    request_id: Id,
    after: Annotated[str, Option(metavar="ENTRY", help="Begin behind this entry.")] = "0-0",
    as_json: AsJson = False,
) -> None:
    """Print the text of a request as it comes; --json prints one event a line."""
    client = Client()
    begin = time.monotonic()
    while client.job(request_id) is None:
        if time.monotonic() - begin > UNKNOWN_S:
            raise unknown(request_id)
        time.sleep(POLL_S)
    show_stream(client, request_id, after, as_json)


def show_stream(client: Client, request_id: str, after: str, as_json: bool) -> None:
    """Prints text, or one event a line, to the end."""
    for event in client.stream(request_id, after=after):
        if as_json:
            print(json.dumps(event_object(request_id, event)), flush=True)
        else:
            print(event.text, end="", flush=True)
        if isinstance(event, EndEvent):
            if not as_json:
                print()
            leave(request_id, event, as_json)


def event_object(request_id: str, event: TokenEvent | EndEvent) -> dict[str, Any]:
    if isinstance(event, EndEvent):
        return {"type": "end", **end_object(request_id, event)}
    return {"type": "token", **msgspec.to_builtins(event)}


def end_object(request_id: str, end: EndEvent) -> dict[str, Any]:
    return {"id": request_id, **msgspec.to_builtins(end)}


def leave(request_id: str, end: EndEvent, as_json: bool) -> None:
    """Exit code 1 when the request did not finish; the reason, unless JSON has said it."""
    if end.status == "finished":
        return
    if as_json:
        raise Exit(FAILED)
    raise Failure(f"{request_id} {end.status}: {end.error or 'no reason given'}")


def cancel(request_id: Id, as_json: AsJson = False) -> None:
    """End a request: cancelled (it waited), cancelling (its pool was told) or ended (before)."""
    outcome = Client().cancel(request_id)
    if outcome == "unknown":
        raise unknown(request_id)
    print(json.dumps({"id": request_id, "result": outcome}) if as_json else outcome)


def unknown(request_id: str) -> Failure:
    return Failure(f"nothing is known of a request {request_id!r}")
