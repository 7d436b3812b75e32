"""What the commands of `lockstep session` have in common: the opened files, options, words."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

from ingest.command.failure import USAGE, Failure
from kv_tier.files import DiskError, DiskFull
from kv_tier.format import CorruptFile
from kv_tier.sessions import BadName
from kv_tier.tier import KvTier
from workers.session.files import open_tier
from workers.settings import settings

if TYPE_CHECKING:
    from kv_tier.manifest import Manifest

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Tenant = Annotated[str, typer.Option(help="Whose.")]
Id = Annotated[str, typer.Argument(metavar="ID", help="The session's id.", show_default=False)]


@contextmanager
def opened() -> Iterator[KvTier]:
    """The node's sessions; what is wrong with them ends the command with a sentence."""
    try:
        tier = open_tier(settings())
        try:
            yield tier
        finally:
            tier.close()
    except BadName:
        rule = "1 to 64 letters, digits, - and _, without --; a tenant 1 to 32 of a-z and 0-9"
        raise Failure(f"that is no name: a session id is {rule}", USAGE) from None
    except DiskFull as error:
        raise Failure(f"{error}: free some room, or lockstep session gc") from None
    except (DiskError, CorruptFile) as error:
        raise Failure(f"{error}: lockstep session verify says which files are sound") from None


def head(tier: KvTier, tenant: str, session_id: str) -> "Manifest":
    """Raises Failure."""
    manifest = tier.sessions.head(tenant, session_id)
    if manifest is None:
        raise Failure(f"there is no session {session_id!r}: lockstep session list shows which are")
    return manifest


def at(time_ms: int) -> str:
    """By the clock on the wall, as all our commands tell times."""
    return f"{datetime.fromtimestamp(time_ms / 1000):%Y-%m-%d %H:%M:%S}"


def mib(num_bytes: int) -> str:
    return f"{num_bytes / 2**20:,.1f} MiB"


@contextmanager
def bar() -> Iterator[Any]:
    """A progress bar on stderr that goes when the work is done."""
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn())
    console = Console(stderr=True)
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as shown:
        task = shown.add_task("opening", total=None)

        def progress(what: str, done: int, total: int) -> None:
            shown.update(task, description=what, completed=done, total=total or None)

        yield progress
