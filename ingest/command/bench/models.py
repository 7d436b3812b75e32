"""The models that `lockstep bench cpu` measures, made where they are not there yet.

    135M-default  the model that is served by default, as it is shipped
    135M, 1.5B    random weights of SmolLM2-135M's and Qwen2.5-1.5B's shapes, all Q4_0
    135M-q8_0     the same, all Q8_0: the kind of the default model's tied head

Any other name is a model of this node.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ingest.command.failure import Failure
from workers.settings import settings

SHIPPED: Final = {"135M-default": "smollm2-135m"}
MADE: Final = {  # what each is like, and the type of its matrices
    "135M": ("smollm2-135m", "Q4_0"),
    "135M-q8_0": ("smollm2-135m", "Q8_0"),
    "1.5B": ("qwen2.5-1.5b", "Q4_0"),
}
DEFAULT: Final = (*SHIPPED, *MADE)


@dataclass(frozen=True)
class Measured:
    """A model by the name in the table; folder of the packed one, and the GGUF it was made from."""

    name: str
    folder: Path
    gguf: Path


def measured(name: str, home: Path, progress: Callable[[str, int, int], None]) -> Measured:
    """Raises BadModel."""
    from workers.model import catalog

    if name in MADE:
        like, type_name = MADE[name]
        called = f"bench-{like}" + ("" if type_name == "Q4_0" else f"-{type_name.lower()}")
        gguf = home / "bench" / f"{called.removeprefix('bench-')}.gguf"
        if not gguf.exists() or called not in catalog.names(home):
            make(name, gguf, called, home, progress)
    else:
        called = SHIPPED.get(name, name)
        gguf = catalog.folder_of(home, called) / "model.gguf"
    folder = catalog.ensure(home, called, progress)
    return Measured(name, folder, gguf)


def folder_of(name: str) -> Path:
    """The folder of one of this node's models, fetched and packed if need be. Raises Failure."""
    from workers.model import catalog
    from workers.model.config import BadModel

    try:
        return catalog.ensure(settings().home, name, progress=None)
    except BadModel as error:
        raise Failure(str(error)) from None


def make(
    name: str, gguf: Path, called: str, home: Path, progress: Callable[[str, int, int], None]
) -> None:
    from gguf import GGMLQuantizationType as Type

    from workers.model import catalog
    from workers.model.synth import made, write

    like, type_name = MADE[name]
    gguf.parent.mkdir(parents=True, exist_ok=True)
    write(made(like, 0, Type[type_name]), gguf, progress)
    catalog.add(gguf, called, home, progress)
