"""The progress bar of a bench: on stderr, since stdout is the answer."""

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn


def bar() -> Progress:
    """Gone when it is done."""
    columns = (TextColumn("{task.description:>28}"), BarColumn(), TimeElapsedColumn())
    return Progress(*columns, console=Console(stderr=True), transient=True)
