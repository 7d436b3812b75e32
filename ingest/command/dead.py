"""`lockstep dead`: what ended badly and waits for a person, and how it is tried again.

    list    the newest dead letters: requests that were refused or poisonous, webhooks nobody took
    show    one of them, with what it carried
    replay  a webhook is posted again under its old webhook-id, with a fresh schedule; a request
            enters its stream again under a new id: the old one has ended, and nothing ends twice

A letter that was replayed is gone; what fails again leaves a new one.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from itertools import islice
from typing import Annotated, Any, Final, cast

import msgpack
import msgspec
import typer

from ingest.command.failure import FAILED, USAGE, Failure
from workers.settings import settings
from workers.store import Store
from workers.wire import DEFAULT_TENANT, Request, full_id

app = typer.Typer(
    help="What ended badly and waits for a person.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)
ENTRY_ID: Final = re.compile(r"\d+-\d+")
PAGE: Final = 100  # letters read at once


class Kind(StrEnum):
    """What can be dead."""

    REQUEST = "request"
    WEBHOOK = "webhook"


AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
OfKind = Annotated[Kind | None, typer.Option("--kind", help="Only this kind.")]
Entries = list[tuple[bytes, dict[bytes, bytes]]]


class CannotReplay(Exception):
    """Why this letter cannot be tried again, in words."""


@dataclass(frozen=True)
class Letter:
    """One entry of the stream lockstep:dead."""

    entry: str
    fields: Mapping[str, bytes]

    def text(self, name: str) -> str:
        return self.fields.get(name, b"").decode("utf-8", "replace")

    def summary(self) -> dict[str, Any]:
        """All but what it carried. letter: its own entry id; entry: that of a request's message."""
        carried = ("body", "request")
        told = {name: self.text(name) for name in self.fields if name not in carried}
        return {"letter": self.entry, **told, "at_ms": int(self.text("at_ms") or 0)}


@app.command("list")
def list_command(
    count: Annotated[int, typer.Option(min=1, help="How many at most, newest first.")] = 50,
    kind: OfKind = None,
    as_json: AsJson = False,
) -> None:
    """The newest dead letters."""
    found = list(islice(letters(Store.of(settings()), kind), count))
    if as_json:
        print(json.dumps({"dead": [letter.summary() for letter in found]}))
        return
    for letter in found:
        print(line(letter))
    if not found:
        print("no dead letters")


@app.command("show")
def show_command(
    name: Annotated[str, typer.Argument(help="Id of a letter, or of its request.")],
    kind: OfKind = None,
    as_json: AsJson = False,
) -> None:
    """One dead letter, with what it carried."""
    letter = find(Store.of(settings()), name, kind)
    if letter is None:
        raise Failure(f"there is no dead letter {name!r}")
    told = letter.summary() | {"carried": carried(letter)}
    if as_json:
        print(json.dumps(told))
        return
    for key, value in told.items():
        shown = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        print(f"{key:<10} {shown}")


@app.command("replay")
def replay_command(
    names: Annotated[
        list[str] | None, typer.Argument(help="Ids of letters, or of their requests.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="All that there are.")] = False,
    kind: OfKind = None,
    as_json: AsJson = False,
) -> None:
    """Try again: exit code 0 when all of them are on their way."""
    if bool(names) == every:
        raise Failure("name the letters, or give --all", USAGE)
    store = Store.of(settings())
    rows = [try_again(store, name, find(store, name, kind)) for name in names or ()]
    if every:
        rows = [try_again(store, letter.entry, letter) for letter in letters(store, kind)]
    wrong = [row["error"] for row in rows if row["error"]]
    if as_json:
        print(json.dumps({"replayed": rows}))
        raise typer.Exit(FAILED if wrong else 0)
    for row in rows:
        if row["error"] is None:
            print(f"{row['kind']} {row['id']}: on its way as {row['as']}")
    if wrong:
        raise Failure("; ".join(wrong))


def try_again(store: Store, name: str, letter: Letter | None) -> dict[str, str | None]:
    """What became of it: as is the request's new id, or the webhook-id."""
    if letter is None:
        return {"letter": name, "error": f"there is no dead letter {name!r}"}
    told = {"letter": letter.entry, "kind": letter.text("kind"), "id": letter.text("id")}
    try:
        replay = replay_webhook if told["kind"] == "webhook" else replay_request
        return {**told, "as": replay(store, letter), "error": None}
    except CannotReplay as why:
        return {**told, "as": None, "error": f"{told['kind']} {told['id']}: {why}"}


# --- the letters ---


def letters(store: Store, kind: Kind | None) -> Iterator[Letter]:
    """Newest first."""
    end = "+"
    while page := cast(Entries, store.redis.xrevrange(store.keys.dead, max=end, count=PAGE)):
        found = [letter_of(entry, fields) for entry, fields in page]
        yield from (x for x in found if kind in (None, x.text("kind")))
        end = f"({found[-1].entry}"


def find(store: Store, name: str, kind: Kind | None) -> Letter | None:
    """The letter of this id, else the newest one of the request of this id."""
    if ENTRY_ID.fullmatch(name):
        found = cast(Entries, store.redis.xrange(store.keys.dead, name, name))
        if found:
            return letter_of(*found[0])
    return next((x for x in letters(store, kind) if x.text("id") == name), None)


def letter_of(entry: bytes, fields: Mapping[bytes, bytes]) -> Letter:
    return Letter(entry.decode(), {key.decode(): value for key, value in fields.items()})


def line(letter: Letter) -> str:
    at = datetime.fromtimestamp(int(letter.text("at_ms") or 0) / 1000)
    where = letter.text("url") or letter.text("sla")
    head = f"{letter.entry:<20} {at:%Y-%m-%d %H:%M:%S}  {letter.text('kind'):<8}"
    return f"{head} {letter.text('id')}  {where}  {letter.text('reason')}"


def carried(letter: Letter) -> Any:
    """The webhook's event, or the request's fields, readable; None when nothing can be read."""
    try:
        if letter.text("kind") == "webhook":
            return json.loads(letter.fields["body"])
        fields = letter.fields.get("request") or letter.fields["body"]
        return readable(msgpack.unpackb(fields, strict_map_key=False))
    except (KeyError, ValueError):
        return None


def readable(value: Any) -> Any:
    """Bytes as text, so that JSON can hold it."""
    if isinstance(value, dict):
        return {str(readable(key)): readable(item) for key, item in value.items()}
    if isinstance(value, list):
        return [readable(item) for item in value]
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


# --- replay ---


def replay_webhook(store: Store, letter: Letter) -> str:
    """Queue a fresh attempt; gives the webhook-id, the same as before."""
    from workers.webhook.event import message_id

    request_id = letter.text("id")
    keys = [store.keys.dead, store.keys.webhook(request_id)]
    told = [letter.text(name) for name in ("url", "secret_id", "status")]
    attempts = letter.text("attempts") or "0"
    body = letter.fields.get("body", b"")
    outcome = cast(
        bytes,
        store.run("webhook_replay", keys, letter.entry, request_id, *told, attempts, body),
    ).decode()
    if outcome == "unknown":
        raise CannotReplay("it was replayed already")
    if outcome != "queued":
        raise CannotReplay(f"its webhook is {outcome}")
    return message_id(request_id, letter.text("status"))


def replay_request(store: Store, letter: Letter) -> str:
    """Add it to its stream again; gives its new id, which is made of the letter's."""
    new_id = f"replay-{letter.entry}"
    entry = entry_of(letter, new_id)
    keys = [store.keys.dead, store.keys.requests(letter.text("sla"))]
    pairs = [part for pair in entry.items() for part in pair]
    if store.run("replay_request", keys, letter.entry, *pairs) == 0:
        raise CannotReplay("it was replayed already")
    return full_id(letter.text("tenant") or DEFAULT_TENANT, new_id)


def entry_of(letter: Letter, new_id: str) -> dict[str | bytes, bytes]:
    """The stream entry of a dead request, under another id. Raises CannotReplay."""
    if letter.fields.get("request"):
        admitted = msgspec.msgpack.decode(letter.fields["request"], type=Request)
        return {"m": cast(bytes, msgpack.packb(client_fields(admitted, new_id)))}
    try:
        fields = msgpack.unpackb(letter.fields.get("body", b""), strict_map_key=False)
    except ValueError:
        raise CannotReplay("what is kept of it is no whole request") from None
    if not isinstance(fields, dict) or not fields:
        raise CannotReplay("it was no request")
    if all(isinstance(key, bytes) for key in fields):  # plain fields, as redis-cli wrote them
        return {**fields, b"id": new_id.encode()}
    return {"m": cast(bytes, msgpack.packb({**fields, "id": new_id}))}


def client_fields(request: Request, new_id: str) -> dict[str, Any]:
    """What a client would send for an admitted request. Its deadline has passed and is left out.

    A prompt that was composed already is the whole history as it was then.
    """
    names = ["v", "tenant", "model", "metadata", "webhook", "session_id", "session_mode"]
    whole = msgspec.to_builtins(request)
    whole["session_mode"] = "history" if request.composed else request.session_mode or None
    if request.messages and not request.composed:
        names += ["messages", "chat_template_kwargs"]
        whole["chat_template_kwargs"] = request.variables
    else:
        names += ["token_ids"]
    params = {name: value for name, value in whole["params"].items() if value is not None}
    told = {name: whole[name] for name in names if whole[name] is not None}
    return {**told, **params, "id": new_id}
