"""The real node under faults: honcho, its Procfile and keepers, a tiny model, an AOF, two pools.

Between it and the world stand a proxy to Redis, one to the receiver of webhooks, a clock that can
be set, a folder of kill points, and for its sessions and its log disks that can be filled.
"""

import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import psutil
from redis.exceptions import RedisError

from tests.chaos.link import Link
from tests.chaos.moody_receiver import SECRET, MoodyReceiver
from tests.node.running_node import PROGRAMS, ROOT, Node, wait_for
from workers.model import catalog
from workers.store import Store

MODELS = ("tiny_llama", "tiny_qwen35", "tiny_qwen3")
LEASE_S = 3.0
START_S = 300.0  # on a machine that does much else
DISK_MIB, QUOTA_MIB = 96, 64  # of its own, where one may be mounted
CACHE = ROOT / "build" / "chaos"
# it promises nothing, so that it refuses nothing for being late, however slow the machine is
NOTHING = {
    "realtime": {"ttft_ms": 0, "tpot_ms": 0},
    "standard": {"ttft_ms": 0, "tpot_ms": 0},
    "batch": {"deadline_ms": 0},
}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def clock_library() -> Path:
    """clock.c, compiled."""
    source, library = Path(__file__).parent / "clock.c", CACHE / "clock.so"
    if not library.exists() or library.stat().st_mtime < source.stat().st_mtime:
        CACHE.mkdir(parents=True, exist_ok=True)
        aside = library.with_suffix(f".{os.getpid()}")
        subprocess.run(["gcc", "-shared", "-fPIC", "-O2", "-o", aside, source], check=True)
        aside.replace(library)
    return library


def packed(model: str) -> Path:
    """A LOCKSTEP_HOME whose models hold it; kept for the next run."""
    if not (CACHE / "models" / model).exists():
        gguf = ROOT / "tests" / "golden" / f"{model}.Q4_0.gguf"
        catalog.add(gguf, model, CACHE, progress=None)
    return CACHE / "models"


class ChaosNode(Node):
    """A node that is started again when a fault ends it, and whoever receives its webhooks.

    kills  how often it was started again
    """

    def __init__(self, model: str) -> None:
        home = Path(tempfile.mkdtemp(prefix="chaos-"))
        self.store_port, self.kills = free_port(), 0
        self.model, self.receiver = model, MoodyReceiver()
        self.baseline: dict[str, tuple[int, int]] = {}  # program: (descriptors, MiB) at the start
        self.points, self.clock = home / "kill_points", home / "clock"
        self.points.mkdir(parents=True)
        self.clock.write_bytes(bytes(8))
        (home / "models").symlink_to(packed(model))
        self.disks = [home / "kv", home / "store"]
        for folder in self.disks:
            folder.mkdir(mode=0o700)
        self.has_disk = all([mount(folder) for folder in self.disks])
        self.to_store, self.to_receiver = Link(self.store_port), Link(self.receiver.port)
        super().__init__(
            home,
            free_port(),
            self.store_port,
            LOCKSTEP_MODEL=model,
            LOCKSTEP_GPU="cpu",
            LOCKSTEP_THREADS="1",
            LOCKSTEP_MAX_BATCH="6",
            LOCKSTEP_KV_MIB="4",
            LOCKSTEP_KV_DISK_MIB=str(QUOTA_MIB),
            LOCKSTEP_KV_KEEP_FREE_MIB="1",
            LOCKSTEP_LEASE_S=str(LEASE_S),
            LOCKSTEP_SLA=json.dumps(NOTHING),
            LOCKSTEP_WEBHOOK_SECRET=SECRET,
            LOCKSTEP_WEBHOOK_ALLOW="127.0.0.0/8",
            LOCKSTEP_WEBHOOK_RETRIES=",".join(["1"] * 40),
            LOCKSTEP_KILL_POINTS=str(self.points),
            LD_PRELOAD=str(clock_library()),
            CHAOS_CLOCK=str(self.clock),
        )
        self.store = Store(
            f"redis://127.0.0.1:{self.store_port}/0", self.store.keys, timeout_s=30.0
        )
        self.procfile, self.is_linked = home / "Procfile", False
        self.write_procfile()

    def write_procfile(self, *, linked: bool = False) -> None:
        """The node's own; linked: all but the store reach Redis through the proxy."""
        self.is_linked = linked
        url = f"env LOCKSTEP_REDIS_URL=redis://127.0.0.1:{self.to_store.port}/0 "
        lines = (ROOT / "Procfile").read_text().splitlines()
        told = [
            line.replace("exec ", f"exec {url}", 1)
            if linked and not line.startswith("store:")
            else line
            for line in lines
        ]
        self.procfile.write_text("\n".join(told) + "\n")

    def start(self) -> None:
        command = ["honcho", "start", "-f", str(self.procfile), "-d", str(self.home)]
        with self.log.open("ab") as log:
            self.honcho = subprocess.Popen(
                [self.environment["PATH"].split(":")[0] + "/python", "-m", *command],
                env=self.environment,
                cwd=self.home,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        wait_for(self.is_whole, f"whole\n{self.tail()}", START_S)

    @property
    def has_begun(self) -> bool:
        return hasattr(self, "honcho")

    def begin(self, *, linked: bool) -> None:
        """Start it for the first time."""
        self.write_procfile(linked=linked)
        self.start()
        self.baseline = self.burdens()

    def burdens(self) -> dict[str, tuple[int, int]]:
        """Of each program: (open descriptors, MiB resident)."""
        found = {}
        for name, process in self.all_running():
            with suppress(psutil.NoSuchProcess):
                found[name] = (process.num_fds(), process.memory_info().rss >> 20)
        return found

    def is_whole(self) -> bool:
        """Both pools, the router and the door are ready. Raises AssertionError: it has ended."""
        assert self.honcho.poll() is None, f"the node ended\n{self.tail()}"
        try:
            ready = {load.pool for load in self.store.loads() if load.state == "ready"}
            answer = httpx.get(f"{self.url}/readyz", timeout=5)
        except (RedisError, httpx.HTTPError):
            return False
        return ready == {"cpu", "gpu"} and answer.status_code == 200

    def again(self) -> None:
        """Started again after its end."""
        self.kills += 1
        wait_for(lambda: self.honcho.poll() is not None, "honcho ended", 20)
        wait_for(lambda: not self.left_over(), f"ended\n{self.left_over()}", 20)
        self.start()

    def state(self, name: str) -> dict[str, object]:
        """What the keeper of a program says; empty: nothing yet."""
        try:
            found: dict[str, object] = json.loads((self.home / "run" / f"{name}.json").read_text())
        except (OSError, ValueError):
            return {}
        return found

    def running(self, name: str) -> psutil.Process | None:
        """The program, None while it is not there."""
        state = self.state(name)
        try:
            pid = state.get("pid")
            return psutil.Process(int(str(pid))) if state.get("state") == "running" else None
        except psutil.NoSuchProcess:
            return None

    def keeper(self, name: str) -> psutil.Process:
        return psutil.Process(int(str(self.state(name)["keeper"])))

    def all_running(self) -> Iterator[tuple[str, psutil.Process]]:
        for name in PROGRAMS:
            process = self.running(name)
            if process is not None:
                yield name, process

    def set_clock(self, seconds: float) -> None:
        """The wall clock of all its processes is so far ahead."""
        with self.clock.open("r+b") as file:
            file.write(struct.pack("<q", int(seconds * 1e9)))

    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        """`lockstep WORDS`."""
        command = [self.environment["PATH"].split(":")[0] + "/python", "-m", "ingest.command.main"]
        return subprocess.run(
            [*command, *words], env=self.environment, cwd=ROOT, capture_output=True, text=True
        )

    def left_over(self) -> list[str]:
        """Processes of the node that still run."""
        found = []
        for process in self.seen.values():
            with suppress(psutil.NoSuchProcess):  # also: it has just become a zombie
                if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(" ".join(process.cmdline()))
        return found

    def end_all(self) -> None:
        """Whatever happened: no process, no mount, no folder is left."""
        if self.has_begun:
            for _, process in self.all_running():
                resume(process)
            self.kill()
            wait_for(lambda: not self.left_over(), "ended", 20)
        self.to_store.close()
        self.to_receiver.close()
        self.receiver.stop()
        for folder in self.disks if self.has_disk else ():
            wait_for(lambda folder=folder: unmounted(folder), f"{folder} is free", 20)
        shutil.rmtree(self.home, ignore_errors=True)


def mount(folder: Path) -> bool:
    """A small disk there, if this user may mount one."""
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m,mode=700", "tmpfs", folder]
    return os.geteuid() == 0 and subprocess.run(command, capture_output=True).returncode == 0


def unmounted(folder: Path) -> bool:
    return subprocess.run(["umount", folder], capture_output=True).returncode == 0


def kill(process: psutil.Process | None) -> bool:
    """kill -9; False: there was nobody."""
    if process is None:
        return False
    try:
        process.send_signal(signal.SIGKILL)
    except psutil.NoSuchProcess:
        return False
    return True


def resume(process: psutil.Process) -> None:
    with suppress(psutil.NoSuchProcess):
        process.resume()
