"""The node's files: room, permissions, the model, the secret that signs webhooks."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ingest.command import preflight
from ingest.command.doctor.finding import Finding, of_sentences, wrong
from workers.settings import Settings

FOLDERS: Final = ("", "models", "store", "run", "slots", "kv")  # that the node writes in
SECRETS: Final = ("webhook_secret", "webhook_secrets/*", "kv/salt")  # for the node's user alone


def examine(config: Settings, *, deep: bool) -> Iterator[Finding]:
    room = preflight.disk_problems(config.home, preflight.RUN_MIB)
    yield from of_sentences("disk-full", "disk", room, "enough room")
    yield from permissions(config.home)
    yield model(config, deep=deep)
    yield secret(config)


def permissions(home: Path) -> Iterator[Finding]:
    """Whether we may write where the node writes, and others cannot read what is secret."""
    found = False
    for name in FOLDERS:
        folder = home / name
        if folder.exists() and not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
            found, owner = True, folder.stat().st_uid
            what = f"{folder} belongs to user {owner} and may not be written by {os.getuid()}"
            todo = "start the node as that user, or chown -R the folder"
            yield wrong("permissions", "files", what, todo)
    for path in sorted(path for pattern in SECRETS for path in home.glob(pattern)):
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode & 0o077:
            found = True
            what = f"{path} can be read by others (mode {mode:o})"
            yield wrong("permissions", "files", what, f"chmod 600 {path}")
    if not found:
        yield Finding("files", "are ours alone")


def model(config: Settings, *, deep: bool) -> Finding:
    """Whether the served model can be opened, and is what its card says; deep reads all of it."""
    from workers.model import catalog
    from workers.model.build import PACK
    from workers.model.config import BadModel
    from workers.model.pack import OtherLayout, Weights

    again = f"lockstep model add PATH.gguf --name {config.model}"
    try:
        card = catalog.card_of(config.home, config.model)
        weights = Weights.open(catalog.folder_of(config.home, config.model) / PACK)
    except OtherLayout as error:
        return wrong("model-stale", "model", f"{config.model}: {error}", f"make start, or {again}")
    except BadModel as error:
        todo = f"make start fetches the default model; another one: {again}"
        return wrong("model-missing", "model", f"{config.model}: {error}", todo)
    if card.get("weights_digest") != weights.digest:
        what = f"{config.model}: its card says {card.get('weights_digest')}, its pack another one"
        return wrong("model-digest", "model", what, again)
    if deep:
        try:
            weights.check(lambda *_: None)
        except BadModel as error:
            return wrong("model-digest", "model", f"{config.model}: {error}", again)
    read = "read and compared" if deep else "--deep reads all of it"
    return Finding("model", f"{config.model}, digest {weights.digest[:16]} ({read})")


def pack_bytes(config: Settings) -> int:
    """Of the served model's weights; 0: there are none."""
    from workers.model import catalog
    from workers.model.build import PACK

    try:
        return (catalog.folder_of(config.home, config.model) / PACK).stat().st_size
    except (OSError, ValueError):
        return 0


def secret(config: Settings) -> Finding:
    from workers.webhook.sign import NoSecret, read_secrets
    from workers.wire import DEFAULT_SECRET

    try:
        read_secrets(DEFAULT_SECRET, config.home, config.webhook_secret)
    except NoSecret as error:
        todo = "make start makes one, or set LOCKSTEP_WEBHOOK_SECRET"
        return wrong("secret-missing", "webhooks", str(error), todo)
    return Finding("webhooks", "there is a secret to sign with")
