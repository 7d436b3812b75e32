"""The `lockstep` command: finds the subcommand, runs it, and turns what goes wrong into a sentence.

A subcommand's module is imported when it is called, so that `lockstep --help` is quick.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from importlib import import_module
from typing import Any, Final, NamedTuple

from ingest.command.failure import FAILED, INTERRUPTED, STORE_AWAY, USAGE, Failure


class Place(NamedTuple):
    """Where a subcommand is: a function for typer, or a typer app of its own."""

    module: str
    attribute: str
    sentence: str


COMMANDS: Final[Mapping[str, Place]] = {
    "enqueue": Place("request", "enqueue", "put a request on the stream of its class"),
    "result": Place("request", "result", "the text of a request that has ended"),
    "stream": Place("request", "stream", "the text of a request as it comes"),
    "cancel": Place("request", "cancel", "end a request early"),
    "promote": Place("promote", "promote", "give a request another class, also while it runs"),
    "restart": Place("restart", "restart", "begin pools anew, one by one; no request fails"),
    "status": Place("status", "status", "a request's status, or the node's"),
    "jobs": Place("jobs", "jobs", "what was asked for lately: by state, class, session, time"),
    "nodes": Place("nodes", "nodes", "the nodes of the fleet, and which of them take part"),
    "top": Place("top", "top", "the node as it is, anew each second"),
    "dead": Place("dead", "app", "what could not be run or delivered; send it again"),
    "model": Place("model", "app", "add a GGUF file, list what is there"),
    "key": Place("key", "app", "API keys of the HTTP door: add, list, rotate, remove"),
    "session": Place("session.app", "app", "conversations kept here: list, export, fork, rm"),
    "eval": Place("eval", "eval_command", "logits or perplexity of a model, without a node"),
    "verify": Place("verify", "verify_command", "compute an answer again and prove it equal"),
    "doctor": Place("doctor.app", "doctor_command", "what is wrong with this node, and what to do"),
    "bench": Place("bench.app", "app", "measure speed, beside a peer"),
    "plan": Place("plan", "plan_command", "what a node could take, in a simulation"),
    "completion": Place("completion", "completion", "what makes a shell complete all this by Tab"),
}

USAGE_TEXT: Final = """\
usage: lockstep COMMAND [OPTIONS]      lockstep COMMAND --help says more

{commands}

Exit codes: 0 done, 1 the request failed or is unknown, 2 wrong usage or configuration,
3 the store does not answer, 4 the result is not there yet. Settings: lockstep.toml and LOCKSTEP_*
variables (docs/configuration.md)."""


def main() -> None:
    """Entry point of the `lockstep` script."""
    os.umask(0o077)  # sessions, models, secrets: whatever is written is its owner's to read
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Runs one command line and gives its exit code."""
    name = arguments[0] if arguments else None
    if name is None or name in ("-h", "--help", "help"):
        print(usage())
        return 0 if name else USAGE
    if name not in COMMANDS:
        near = get_close_matches(name, COMMANDS, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else "; lockstep --help lists what there is"
        return complain(f"there is no command {name!r}{hint}", USAGE)
    try:
        return call(name, list(arguments[1:]))
    except Failure as failure:
        return complain(str(failure), failure.exit_code)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # whoever read us has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except store_errors() as error:
        return complain(f"the store at {store_url()} does not answer: {error}", STORE_AWAY)
    except refusals_of_store() as error:
        return complain(f"the store at {store_url()} refuses: {error}", STORE_AWAY)
    except configuration_errors() as error:
        return complain(f"configuration: {configuration_sentence(error)}", USAGE)


def call(name: str, arguments: list[str]) -> int:
    """Runs a subcommand. Raises what it raises."""
    try:
        command_of(name).main(arguments, prog_name=f"lockstep {name}")
    except SystemExit as end:  # how typer ends, also after --help and wrong usage
        return end.code if isinstance(end.code, int) else 0
    return 0


def command_of(name: str) -> Any:
    """A subcommand, as typer calls it; its module is imported."""
    import typer

    place = COMMANDS[name]
    found: Any = getattr(import_module(f"ingest.command.{place.module}"), place.attribute)
    if not isinstance(found, typer.Typer):
        app = typer.Typer(add_completion=False, rich_markup_mode=None)
        app.command(name)(found)
        found = app
    return typer.main.get_command(found)


def usage() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:{width}}  {place.sentence}" for name, place in COMMANDS.items()]
    return USAGE_TEXT.format(commands="\n".join(lines))


def complain(sentence: str, exit_code: int) -> int:
    print(f"lockstep: {sentence}", file=sys.stderr)
    return exit_code


def store_errors() -> tuple[type[Exception], ...]:
    """What a store that does not answer raises; asked for only when something was raised."""
    from redis.exceptions import ConnectionError, TimeoutError

    return ConnectionError, TimeoutError


def refusals_of_store() -> type[Exception]:
    """What a store raises that answers and does nothing: it is full, or wants a password."""
    from redis.exceptions import ResponseError

    return ResponseError


def store_url() -> str:
    """The store's address without its password."""
    from workers.settings import settings, shown_url

    return shown_url(settings().url)


def configuration_errors() -> tuple[type[Exception], ...]:
    """What reading the settings raises."""
    from tomllib import TOMLDecodeError

    from pydantic import ValidationError

    return ValidationError, TOMLDecodeError, UnicodeDecodeError


def configuration_sentence(error: Exception) -> str:
    """Each wrong setting with its reason, in one line."""
    from pydantic import ValidationError

    if not isinstance(error, ValidationError):
        return f"lockstep.toml: {error}"
    unknown = "there is no such setting; docs/configuration.md has them all"
    found = [
        (".".join(map(str, e["loc"])), unknown if e["type"] == "extra_forbidden" else e["msg"])
        for e in error.errors()
    ]
    return "; ".join(f"{name}: {message}" for name, message in found)


if __name__ == "__main__":
    main()
