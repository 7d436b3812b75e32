"""`lockstep doctor`: what is wrong with this node, and what to do about each thing.

Looks from the bottom up: machine, build, configuration, model; then, if the node runs, its keepers,
store, pools and door. Exit code 0 when nothing is wrong, 1 otherwise. It changes nothing.
"""

import hashlib
import http.client
import json
import platform
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError
from redis import Redis, RedisError

from ingest.command import preflight, start
from ingest.ready import reachable
from workers.settings import Settings, settings

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at; todo says what to do, and is empty when all is well."""

    part: str
    what: str
    todo: str = ""

    @property
    def is_good(self) -> bool:
        return not self.todo


def doctor_command(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Look at machine, build, configuration and node; say what to do about what is wrong."""
    findings = list(examine())
    healthy = all(finding.is_good for finding in findings)
    if as_json:
        print(json.dumps({"healthy": healthy, "findings": [asdict(f) for f in findings]}, indent=1))
    else:
        for finding in findings:
            print(line(finding))
    raise typer.Exit(0 if healthy else 1)


def line(finding: Finding) -> str:
    mark = "ok  " if finding.is_good else "BAD "
    todo = f"\n{'':15}-> {finding.todo}" if finding.todo else ""
    return f"{mark} {finding.part:<9} {finding.what}{todo}"


def examine() -> Iterator[Finding]:
    """All findings, in the order that a person should read them."""
    yield from machine()
    yield from build(ROOT)
    try:
        config = settings()
    except ValidationError as error:
        yield Finding(
            "settings", f"{error.error_count()} wrong: {error.errors()[0]['msg']}", str(error)
        )
        return
    yield from from_sentences("disk", preflight.disk_problems(config.home, preflight.RUN_MIB))
    yield model(config)
    yield secret(config)
    if start.running_keeper(config.home) is None:
        yield from stopped_node(config)
    else:
        yield from keepers(config.home)
        yield from store(config)
        yield door(config)


def from_sentences(part: str, sentences: Iterator[str], good: str = "enough room") -> list[Finding]:
    """preflight's sentences say both what is wrong and, after the colon, what to do."""
    found = [Finding(part, *sentence.split(": ", 1)) for sentence in sentences]
    return found or [Finding(part, good)]


def machine() -> Iterator[Finding]:
    version = tuple(sys.version_info[:2])
    yield from from_sentences(
        "python", preflight.python_problems(version), platform.python_version()
    )
    yield from from_sentences("compiler", preflight.compiler_problems("gcc"), "gcc compiles")
    cpuinfo = Path("/proc/cpuinfo").read_text()
    flags = preflight.cpu_problems(platform.machine(), cpuinfo)
    yield from from_sentences("processor", flags, "has AVX2, FMA and F16C")


def build(root: Path) -> Iterator[Finding]:
    """Whether what is compiled is what the sources say."""
    record = root / "kernels" / "cpu" / "build_hash.json"
    if not record.exists():
        yield Finding("build", "nothing is compiled", "make build")
        return
    hashes: dict[str, dict[str, str]] = json.loads(record.read_text())
    for kind, files in hashes.items():
        stale = [name for name, digest in files.items() if digest_of(root / name) != digest]
        if stale:
            yield Finding(
                "build", f"{kind}: changed since it was built: {', '.join(stale)}", "make build"
            )
        elif not files:
            yield Finding("build", f"{kind}: not built, the slow way runs", "make build")
        else:
            yield Finding("build", f"{kind}: {len(files)} files, as they are now")


def digest_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else ""


def model(config: Settings) -> Finding:
    """Whether the served model can be opened."""
    from workers.model import catalog
    from workers.model.build import PACK
    from workers.model.config import BadModel
    from workers.model.pack import Weights

    try:
        weights = Weights.open(catalog.folder_of(config.home, config.model) / PACK)
    except BadModel as error:
        return Finding(
            "model", f"{config.model}: {error}", "make start, or lockstep model add PATH.gguf"
        )
    return Finding("model", f"{config.model}, digest {weights.digest[:16]}")


def secret(config: Settings) -> Finding:
    from workers.webhook.sign import NoSecret, read_secrets
    from workers.wire import DEFAULT_SECRET

    try:
        read_secrets(DEFAULT_SECRET, config.home, config.webhook_secret)
    except NoSecret as error:
        return Finding(
            "webhooks", str(error), "make start makes one, or set LOCKSTEP_WEBHOOK_SECRET"
        )
    return Finding("webhooks", "there is a secret to sign with")


def stopped_node(config: Settings) -> Iterator[Finding]:
    """Whether a start would succeed."""
    from workers.store_server import CannotStart, check_log

    yield Finding("node", "does not run", "make start")
    yield from from_sentences(
        "ports", preflight.port_problems(config.host, config.port, "LOCKSTEP_PORT"), "free"
    )
    if config.redis_url:
        yield from from_sentences("store", start.redis_problems(config.redis_url), "answers")
        return
    try:
        damage = check_log(config.home.resolve() / "store")
    except CannotStart as error:
        yield Finding("store", str(error), "make build")
        return
    if damage:
        what = f"{damage.lost_bytes} bytes at the end of its log are damaged"
        yield Finding("store", what, "make start cuts them off and keeps a copy")
    else:
        yield Finding("store", "its log is whole")


def keepers(home: Path) -> Iterator[Finding]:
    """How each line of the Procfile is, from what its keeper wrote."""
    names = [text.split(":")[0] for text in (ROOT / "Procfile").read_text().splitlines() if text]
    for name in names:
        try:
            state = json.loads((home / "run" / f"{name}.json").read_text())
        except (OSError, ValueError):
            yield Finding(name, "has no keeper", "stop the node and start it again")
            continue
        yield keeper(name, state)


def keeper(name: str, state: dict[str, Any]) -> Finding:
    last = state.get("last_exit") or {}
    history = f", {state['restarts']} restarts, the last: {last.get('how')}" if last else ""
    if state["state"] == "running":
        return Finding(name, f"runs as {state['pid']}{history}")
    return Finding(name, f"is {state['state']}{history}", "read its lines in the node's output")


def store(config: Settings) -> Iterator[Finding]:
    """The server, and through it the router and the pools."""
    from ingest.pulse import take_pulse
    from workers.store import Store
    from workers.wire import Keys

    connection = Store(config.url, Keys(config.key_prefix))
    try:
        connection.redis.ping()
        yield from server_settings(connection.redis)
        pulse = take_pulse(connection)
    except (RedisError, OSError) as error:
        yield Finding(
            "store", f"does not answer: {error}", "see the store's lines, or LOCKSTEP_REDIS_URL"
        )
        return
    routers = pulse.num_routers
    yield Finding("router", f"{routers} alive", "" if routers else "read the router's lines")
    for load in pulse.loads:
        note = f" ({load.note})" if load.note else ""
        yield Finding(f"pool {load.pool}", f"{load.state}{note}, {load.running} running")
    if not any(load.state == "ready" for load in pulse.loads):
        yield Finding(
            "pools", "none is ready", "wait for a model to load, else read the pools' lines"
        )


def server_settings(redis: "Redis") -> Iterator[Finding]:
    """Whether the server can lose or forget what was accepted."""
    info: dict[str, Any] = redis.info()
    if info.get("aof_enabled") != 1:
        yield Finding("store", "writes no log", "set appendonly yes on your Redis")
    elif info.get("aof_last_write_status") != "ok":
        yield Finding("store", "cannot write its log", "make room on the store's disk")
    else:
        yield Finding("store", "answers, its log is written")
    if info.get("maxmemory_policy") != "noeviction":
        what = f"forgets keys when memory is short ({info.get('maxmemory_policy')})"
        yield Finding("store", what, "set maxmemory-policy noeviction on your Redis")


def door(config: Settings) -> Finding:
    """What /readyz says."""
    host = reachable(config.host)
    connection = http.client.HTTPConnection(host, config.port, timeout=5)
    try:
        connection.request("GET", "/readyz")
        reply = connection.getresponse()
        said: dict[str, Any] = json.loads(reply.read())
    except (OSError, ValueError, http.client.HTTPException) as error:
        return Finding("api", f"/readyz does not answer: {error}", "read the api's lines")
    if reply.status == 200:
        return Finding("api", "/readyz says ready")
    problems = "; ".join(f"{part} {what}" for part, what in said.get("problems", {}).items())
    return Finding("api", f"/readyz says not ready: {problems}", "see the findings above")
