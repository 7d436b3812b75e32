"""`lockstep model`: the models of this node: add a GGUF file, list, show, remove.

Answers go to stdout; the progress bar of packing goes to stderr.
"""

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn
from rich.table import Table

from ingest.command.failure import USAGE, Failure
from workers.model import catalog, pack
from workers.model.build import PACK
from workers.model.config import BadModel
from workers.model.synth import LIKES, made, write
from workers.settings import settings

app = typer.Typer(
    help="The models of this node.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Name = Annotated[str, typer.Argument(help="The model's name.", show_default=False)]


@app.command("list")
def list_command(as_json: AsJson = False) -> None:
    """The models that are here; the served one is marked."""
    home, served = settings().home, settings().model
    with sentences():
        found = [told(catalog.card_of(home, name), name) for name in catalog.names(home)]
    if as_json:
        print(json.dumps({"models": found, "served": served}, ensure_ascii=False))
        return
    if not found:
        print(
            "no models: make start fetches the default one, lockstep model add PATH.gguf any other"
        )
        return
    table = Table("", "name", "architecture", "layers", "hidden", "context", "size", box=None)
    for model in found:
        config = model["config"]
        sizes = (config["num_layers"], config["hidden"], config["context_length"])
        mark = "*" if model["name"] == served else ""
        size = mib(model["packed_bytes"])
        table.add_row(mark, model["name"], config["architecture"], *map(str, sizes), size)
    Console(soft_wrap=True).print(table)


@app.command("add")
def add_command(
    path: Annotated[Path, typer.Argument(metavar="PATH.gguf", show_default=False)],
    name: Annotated[
        str | None, typer.Option(help="Absent: the file's name.", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Pack a GGUF file so that both processors can read it; replaces a model of that name."""
    home, name = settings().home, path.stem if name is None else name
    with sentences(), bar() as progress:
        catalog.add(path, name, home, progress)
        card = catalog.card_of(home, name)
    if as_json:
        print(json.dumps(told(card, name), ensure_ascii=False))
        return
    print_tensors(card)
    print(f"{name} is here; to serve it: LOCKSTEP_MODEL={name} make start")


@app.command("synth")
def synth_command(
    path: Annotated[Path | None, typer.Argument(metavar="PATH.gguf", show_default=False)] = None,
    like: Annotated[
        str, typer.Option(help=f"Its shape: {', '.join(LIKES)}; 27b, 9b, 4b, 0.8b for short.")
    ] = "qwen3.5-27b",
    seed: Annotated[int, typer.Option(min=0, help="Of the random weights.")] = 0,
    pack_it: Annotated[
        bool, typer.Option("--pack", help="Write the packed form at once, no PATH.")
    ] = False,
    name: Annotated[
        str | None, typer.Option(help="Of the packed model. Absent: synth-SHAPE.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Random Q4_0 weights of a true shape, to measure speed and memory with.

    Either PATH.gguf, a file; or --pack, a model of this node, of which no second copy is needed.
    """
    if (path is None) == (not pack_it):
        raise Failure("give either PATH.gguf or --pack", USAGE)
    with sentences(), bar() as progress:
        if path is not None:
            file = made(like, seed)
            write(file, path, progress)
            said = {"path": str(path), "file_bytes": path.stat().st_size}
        else:
            home, name = settings().home, name or f"synth-{like}"
            catalog.add_synth(like, seed, name, home, progress)
            said = told(catalog.card_of(home, name), name)
    if as_json:
        print(json.dumps(said, ensure_ascii=False))
    elif path is not None:
        print(f"{path} is here, {mib(path.stat().st_size)}")
    else:
        print(f"{name} is here; to serve it: LOCKSTEP_MODEL={name} make start")


@app.command("show")
def show_command(
    name: Name,
    check: Annotated[bool, typer.Option("--check", help="Read and check every weight.")] = False,
    as_json: AsJson = False,
) -> None:
    """Where a model came from, its sizes, and what packing did to its tensors."""
    home = settings().home
    with sentences():
        model = told(catalog.card_of(home, name), name)
        if check:
            weights = pack.Weights.open(catalog.folder_of(home, name) / PACK)
            with bar() as progress:
                weights.check(progress)
            model["checked"] = True
    if as_json:
        print(json.dumps(model, ensure_ascii=False))
        return
    table = Table(box=None, show_header=False, pad_edge=False)
    for key in ("name", "title", "source", "weights_digest"):
        table.add_row(key, str(model[key]))
    counts = Counter(model["config"]["kinds"])
    kinds = ", ".join(f"{count} {kind}" for kind, count in counts.items())
    for key, value in (model["config"] | {"kinds": kinds}).items():
        table.add_row(key, str(value))
    Console(soft_wrap=True).print(table)
    print_tensors(model)
    if check:
        print("every weight is as it was packed")


@app.command("remove")
def remove_command(name: Name, as_json: AsJson = False) -> None:
    """Forget a model and free its disk space; a pool that runs it keeps it until it ends."""
    with sentences():
        catalog.remove(settings().home, name)
    print(json.dumps({"removed": name}) if as_json else f"{name} is gone")


def told(card: dict[str, Any], name: str) -> dict[str, Any]:
    """What a card says, without what only the tokenizer needs."""
    rows = card["tensors"]
    return {
        "name": name,
        **{key: value for key, value in card.items() if key not in ("text", "version")},
        "source_bytes": sum(row["source_bytes"] for row in rows),
        "packed_bytes": sum(row["packed_bytes"] for row in rows),
    }


def print_tensors(card: dict[str, Any]) -> None:
    """One line for each type of the GGUF and what it became."""
    table = Table("in the file", "packed as", "tensors", "before", "after", "loss", box=None)
    for row in card["tensors"]:
        before, after = mib(row["source_bytes"]), mib(row["packed_bytes"])
        loss = f"{row['error']:.2%}" if row["error"] else "none"
        table.add_row(row["from"], row["to"], str(row["tensors"]), before, after, loss)
    Console(soft_wrap=True).print(table)


def mib(num_bytes: int) -> str:
    return f"{num_bytes / 2**20:,.1f} MiB"


@contextmanager
def sentences() -> Iterator[None]:
    """A model that cannot be used ends the command with its sentence."""
    try:
        yield
    except BadModel as error:
        raise Failure(str(error)) from error


@contextmanager
def bar() -> Iterator[pack.Progress]:
    """A progress bar on stderr that goes when the work is done."""
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn())
    console = Console(stderr=True)
    quiet = not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=quiet) as shown:
        task = shown.add_task("reading", total=None)

        def progress(what: str, done: int, total: int) -> None:
            shown.update(task, description=what, completed=done, total=total or None)

        yield progress
