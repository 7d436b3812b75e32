"""Starts the node in the foreground, as `make start`: says when it is ready, stops it on Ctrl-C.

    prepare ──► honcho start ──► /readyz answers ──► the ready line ──► wait ──► SIGTERM to honcho

prepare looks at ports and store and makes sure of the model and the webhook secret. It is a process
of its own (`start.py prepare`), so that this one stays small as long as the node runs. honcho runs
in one, too (`start.py honcho`): when whoever read its output is gone (`make start | tee log`, then
Ctrl-C), it would fall over its own messages and stop nothing.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO, cast

from ingest.health.ready import (
    SAID_ELSEWHERE,
    needs_key,
    reachable,
    ready_lines,
    status_of,
)

ROOT = Path(__file__).parents[2]
POLL_S = 0.2
PATIENCE_S = 120.0  # then we say how to find out what is wrong
STOP_S = 6.0  # honcho itself kills after 5
ASKED = (130, 143)  # honcho's exit codes after a signal of its own


class Stop(Exception):
    """A person, or whoever started us, asked for the end."""


def on_signal(_number: int, _frame: object) -> None:
    raise Stop


class Unbroken:
    """A stream whose reader may go away: what nobody reads is dropped."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        try:
            self.stream.write(text)
            self.stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.stream.fileno())
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def main(arguments: list[str]) -> int:
    sys.stdout = cast(TextIO, Unbroken(sys.stdout))
    os.umask(0o077)  # whatever the node writes is its own to read
    if arguments == ["prepare"]:
        return prepare()
    if arguments == ["honcho"]:
        return honcho_start()
    began = time.monotonic()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, on_signal)
    try:
        prepared = subprocess.run(
            [sys.executable, "-m", "ingest.command.start", "prepare"],
            cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    except Stop:
        return 0
    if prepared.returncode:
        return prepared.returncode
    node = json.loads(prepared.stdout)
    return run(node, began)


def run(node: dict[str, Any], began: float) -> int:
    """honcho from its start to its end; 0 when it was stopped by a person."""
    honcho = subprocess.Popen(
        [sys.executable, "-m", "ingest.command.start", "honcho"],
        cwd=ROOT, env=environment(), preexec_fn=die_with_parent,
        process_group=0,  # Ctrl-C is for us: honcho breaks on a second signal while it prints
    )  # fmt: skip
    try:
        if wait_until_ready(node, honcho):
            with_key, took_s = needs_key(node["host"], node["port"]), time.monotonic() - began
            print(ready_lines(**node, took_s=took_s, with_key=with_key), flush=True)
        code = honcho.wait()
        return 0 if code in ASKED else code or 1
    except Stop:
        return stop(honcho)


def honcho_start() -> int:
    """`honcho start`, in this process."""
    from honcho.command import main as honcho

    sys.argv = ["honcho", "start"]
    honcho()  # ends by SystemExit
    return 0


def environment() -> dict[str, str]:
    """Ours, with this Python first on the path: the Procfile says just `python`."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    return os.environ | {"PATH": path, SAID_ELSEWHERE: "1"}


def die_with_parent() -> None:
    """In the child: get SIGTERM when our parent is killed."""
    import ctypes

    set_parent_death_signal = 1
    ctypes.CDLL(None).prctl(set_parent_death_signal, int(signal.SIGTERM))


def wait_until_ready(node: dict[str, Any], honcho: subprocess.Popen[bytes]) -> bool:
    """True when /readyz answers 200, False when honcho ended before that."""
    patient_until = time.monotonic() + PATIENCE_S
    while honcho.poll() is None:
        if status_of(node["host"], node["port"], "/readyz") == 200:
            return True
        if time.monotonic() > patient_until:
            print("Not ready yet: `.venv/bin/lockstep doctor` says why.", file=sys.stderr)
            patient_until += PATIENCE_S
        time.sleep(POLL_S)
    return False


def stop(honcho: subprocess.Popen[bytes]) -> int:
    """End the node; 0 when it ended in time."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # once is enough
    honcho.terminate()
    try:
        honcho.wait(STOP_S)
    except subprocess.TimeoutExpired:
        honcho.kill()  # the keepers end by themselves then
        print("The node did not stop in time and was killed.", file=sys.stderr)
        return 1
    print("Lockstep has stopped.", flush=True)
    return 0


def prepare() -> int:
    """Everything before the first process: prints what the parent must know, or what to do."""
    from workers.settings import complaints, settings

    try:
        config = settings()
    except (ValueError, OSError) as error:
        print("\n".join(complaints(error)), file=sys.stderr)
        return 1
    try:
        found = list(problems(config))
        if not found:
            make_ready(config)
    except KeyboardInterrupt:
        return 130
    for sentence in found:
        print(sentence, file=sys.stderr)
    node = {"host": reachable(config.host), "port": config.port, "model": config.model}
    print(json.dumps(node))
    return 1 if found else 0


def problems(config: Any) -> Iterator[str]:
    """What would keep this node from running here."""
    from ingest.command import preflight

    keeper = running_keeper(config.home)
    if keeper:
        yield f"This node already runs (keeper {keeper}): stop it first, or set LOCKSTEP_HOME."
        return
    yield from preflight.port_problems(config.host, config.port, "LOCKSTEP_PORT")
    yield from preflight.disk_problems(config.home, preflight.RUN_MIB)
    if config.redis_url:
        yield from redis_problems(config.url, config.key_prefix)
    else:
        yield from preflight.port_problems("127.0.0.1", config.store_port, "LOCKSTEP_STORE_PORT")


def redis_problems(url: str, prefix: str) -> Iterator[str]:
    """A store of the user's own that does not answer."""
    from redis import RedisError

    from workers.master.client import StoreClients

    try:
        StoreClients(url, prefix).client(3, connect_s=3).ping()
    except (RedisError, ValueError, OSError) as error:
        yield f"The Redis of LOCKSTEP_REDIS_URL does not answer ({error}): start it, or unset it."


def running_keeper(home: Path) -> int | None:
    """Process id of a keeper of this home that lives."""
    from ingest.health.programs import kept_programs

    return next((program.keeper for program in kept_programs(home)), None)


def make_ready(config: Any) -> None:
    """The model's pack and the webhook secret. Exits with one sentence when there is no model."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

    from workers.model import catalog
    from workers.model.config import BadModel
    from workers.webhook.sign import make_secret

    if config.webhook_secret is None:
        make_secret(config.home)
    columns = TextColumn("{task.description}"), BarColumn(), TaskProgressColumn()
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task(config.model, total=None, visible=False)

        def progress(what: str, done: int, total: int) -> None:
            bar.update(task, description=what, completed=done, total=total or None, visible=True)

        try:
            catalog.ensure(config.home, config.model, progress)
        except BadModel as error:
            sys.exit(f"{error}.")


if __name__ == "__main__":
    code = main(sys.argv[1:])
    os._exit(code)  # not sys.exit: it would write to an output that nobody reads
