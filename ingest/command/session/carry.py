"""`lockstep session export` and `import`: a session in one file."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ingest.command.failure import Failure
from ingest.command.session.fit import served
from ingest.command.session.known import announce, new_fence
from ingest.command.session.opened import AsJson, Id, Tenant, bar, opened
from workers.settings import settings
from workers.wire import DEFAULT_TENANT

if TYPE_CHECKING:
    from kv_tier.carried import Carried, Node

File = Annotated[Path, typer.Argument(metavar="FILE", show_default=False)]


def export_command(
    session_id: Id, path: File, tenant: Tenant = DEFAULT_TENANT, as_json: AsJson = False
) -> None:
    """Write a session to one file: its log, its messages in plain words, and its KV."""
    from kv_tier.export import CannotExport, export_session

    with opened() as tier, bar() as shown:
        try:
            done = export_session(
                tier, tenant, session_id, path, lambda n, of: shown("writing", n, of)
            )
        except CannotExport as error:
            raise Failure(str(error)) from None
    say_carried(done, f"{path} is here", as_json)


def import_command(
    path: File,
    session_id: Annotated[
        str | None, typer.Option("--id", help="Absent: as it was called.", show_default=False)
    ] = None,
    tenant: Tenant = DEFAULT_TENANT,
    log_only: Annotated[bool, typer.Option("--log-only", help="The token log, no KV.")] = False,
    as_json: AsJson = False,
) -> None:
    """Read a session from a file; nothing of it can be seen before all of it was checked."""
    from kv_tier.bundle import BadExport
    from kv_tier.importing import CannotImport, import_session

    node = None if log_only else needed()
    with opened() as tier, bar() as shown:
        try:
            done = import_session(
                *(tier, path, tenant, session_id, node),
                lambda n, of: shown("reading", n, of),
                fence_of=new_fence,
            )
        except (BadExport, CannotImport) as error:
            raise Failure(str(error)) from None
        announce(done.manifest)
    say_carried(done, f"session {done.manifest.session_id!r} is here", as_json)


def needed() -> "Node":
    """What KV has to fit. Raises Failure."""
    node = served()
    if node is None:
        raise Failure(
            f"model {settings().model!r} is not here, so nothing says whether its KV fits:"
            " make start fetches it; --log-only keeps the token log alone"
        )
    return node


def say_carried(done: "Carried", sentence: str, as_json: bool) -> None:
    told = {
        "id": done.manifest.session_id,
        "tokens": len(done.manifest.token_ids),
        "kv_tokens": done.manifest.num_kv,
        "objects": done.objects,
        "left": done.left,
        "file_bytes": done.file_bytes,
    }
    if as_json:
        print(json.dumps(told))
        return
    left = f"; {done.left} are not there and will be computed again" if done.left else ""
    print(f"{sentence}: {told['tokens']} tokens, {done.objects} objects of KV{left}")
