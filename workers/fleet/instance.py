"""Which LOCKSTEP_HOME a process works in: a name made at first use, and what its models are."""

import json
import os
import secrets
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import xxhash

from kernels.arithmetic import ARITHMETIC_VERSION
from workers.text.text_model import CARD, TOKENIZER


def node_id(home: Path) -> str:
    """The name of this LOCKSTEP_HOME, made at first use."""
    path = home / "node_id"
    if not path.exists():
        home.mkdir(parents=True, exist_ok=True)
        made = home / f"node_id.{secrets.token_hex(4)}"
        made.write_text(secrets.token_hex(4) + "\n")
        try:
            os.link(made, path)  # of several at once, one wins
        except FileExistsError:
            pass
        finally:
            made.unlink()
    return path.read_text().strip()


def identity(folder: Path, model: str, weights_digest: str) -> str:
    """All that a node's answers depend on beside its requests, in one word.

    folder: the model's; its tokenizer and templates count, since they make the prompts
    """
    texts = xxhash.xxh3_64((folder / TOKENIZER).read_bytes())
    said = json.loads((folder / CARD).read_text())["text"]
    texts.update(json.dumps(said, sort_keys=True).encode())
    return f"{model}:{weights_digest[:16]}:{texts.hexdigest()[:8]}:{ARITHMETIC_VERSION}"


def weights_of(weights_digest: str) -> str:
    """What made a token, so that no other weights or arithmetic go on from it."""
    return f"{weights_digest[:16]}:{ARITHMETIC_VERSION}"


def own_version() -> str:
    """The program's, as it is installed; "": it runs from its source alone."""
    try:
        return version("lockstep")
    except PackageNotFoundError:
        return ""
