"""`lockstep session`: the conversations that are kept here: look, check, carry, fork, forget.

All work on the files, with and without a running node. rm asks the store whether a request of the
session waits or runs, and refuses then; --force does not mind. What a request leaves behind that
ends later is not kept: its fence is too old. What makes or deletes a session on purpose tells the
store so (known.py), which else would miss its files, or other nodes would not know of them.
"""

import typer

from ingest.command.session import away, carry, change, look

app = typer.Typer(
    help="Conversations that are kept on this node.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)
for name, command in (
    ("list", look.list_command),
    ("show", look.show_command),
    ("verify", look.verify_command),
    ("export", carry.export_command),
    ("import", carry.import_command),
    ("push", away.push_command),
    ("pull", away.pull_command),
    ("fork", change.fork_command),
    ("pin", change.pin_command),
    ("unpin", change.unpin_command),
    ("rm", change.rm_command),
    ("gc", change.gc_command),
):
    app.command(name)(command)
