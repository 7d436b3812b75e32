"""Faults of processes: killed, frozen, told to end; one, some, or all of them at once."""

import signal
import subprocess
import time

import psutil

from tests.chaos.node import LEASE_S, kill, resume
from tests.chaos.storm import Storm
from tests.node.running_node import PROGRAMS

POOLS = ("cpu", "gpu")
BRIEF_S = 2.0  # what a person does not notice


def kill_router(storm: Storm) -> None:
    kill(storm.node.running("router"))


def kill_cpu(storm: Storm) -> None:
    kill(storm.node.running("cpu"))


def kill_gpu(storm: Storm) -> None:
    kill(storm.node.running("gpu"))


def kill_api(storm: Storm) -> None:
    kill(storm.node.running("api"))


def kill_webhooks(storm: Storm) -> None:
    kill(storm.node.running("webhooks"))


def kill_store(storm: Storm) -> None:
    kill(storm.node.running("store"))


def kill_both_pools(storm: Storm) -> None:
    for name in POOLS:
        kill(storm.node.running(name))


def kill_again_and_again(storm: Storm) -> None:
    """One program, as often as it comes back within some seconds."""
    name, end = storm.chance.choice(PROGRAMS), time.monotonic() + 3 * BRIEF_S
    storm.note(name)
    while time.monotonic() < end:
        kill(storm.node.running(name))
        storm.sleep(0.5, 1.5)


def kill_all_programs(storm: Storm) -> None:
    """All at once; the keepers stay."""
    for _, process in list(storm.node.all_running()):
        kill(process)


def kill_keeper(storm: Storm) -> None:
    """The node ends by that, and is started again."""
    name = storm.chance.choice(PROGRAMS)
    storm.note(name)
    storm.node.processes()
    kill(storm.node.keeper(name))
    storm.node.again()


def kill_honcho(storm: Storm) -> None:
    """So does it by this; its orphans end by themselves."""
    storm.node.processes()
    storm.node.honcho.send_signal(signal.SIGKILL)
    storm.node.again()


def stop_and_start(storm: Storm) -> None:
    """Ctrl-C in the middle of everything, then a new start."""
    storm.node.interrupt()
    storm.node.again()


def terminate_program(storm: Storm) -> None:
    """A polite end of one program, which drains, and is started again."""
    name = storm.chance.choice([name for name in PROGRAMS if name != "store"])
    process = storm.node.running(name)
    storm.note(name)
    if process is not None:
        process.terminate()


def terminate_store(storm: Storm) -> None:
    """A Redis that is restarted in an orderly way."""
    process = storm.node.running("store")
    if process is not None:
        process.terminate()


def freeze_pool(storm: Storm) -> None:
    """For longer than its leases last: it comes back as a zombie."""
    freeze(storm, storm.chance.choice(POOLS), LEASE_S + storm.chance.uniform(1, 3))


def freeze_both_pools(storm: Storm) -> None:
    """So that nobody takes over, and both come back."""
    found = [process for name in POOLS if (process := storm.node.running(name))]
    hold(found, LEASE_S + storm.chance.uniform(0, 2))


def freeze_router(storm: Storm) -> None:
    freeze(storm, "router", LEASE_S + storm.chance.uniform(0, 2))


def freeze_api(storm: Storm) -> None:
    freeze(storm, "api", storm.chance.uniform(1, 3))


def freeze_webhooks(storm: Storm) -> None:
    freeze(storm, "webhooks", LEASE_S + storm.chance.uniform(0, 2))


def freeze_store(storm: Storm) -> None:
    """A Redis that does not answer for as long as a lease lasts."""
    freeze(storm, "store", storm.chance.uniform(1, LEASE_S + 1))


def freeze_everything(storm: Storm) -> None:
    """A machine that was suspended."""
    hold([process for _, process in storm.node.all_running()], LEASE_S + 1)


def freeze(storm: Storm, name: str, seconds: float) -> None:
    process = storm.node.running(name)
    storm.note(name)
    if process is not None:
        hold([process], seconds)


def hold(processes: list[psutil.Process], seconds: float) -> None:
    try:
        for process in processes:
            process.suspend()
        time.sleep(seconds)
    except psutil.NoSuchProcess:
        pass  # it was killed meanwhile
    finally:
        for process in processes:
            resume(process)


def second_router(storm: Storm) -> None:
    """Two read the same streams for a while, and one of them dies."""
    node = storm.node
    with node.log.open("ab") as log:
        other = subprocess.Popen(
            [node.environment["PATH"].split(":")[0] + "/python", "-m", "router", "other"],
            env=node.environment | {"LOCKSTEP_REDIS_URL": storm.url},
            cwd=node.home,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    storm.sleep(3, 5)
    other.kill()
    other.wait()


def memory_killer(storm: Storm) -> None:
    """What the kernel would kill first when memory is short: a pool or the store, by its score."""
    found = {name: score_of(process) for name, process in storm.node.all_running()}
    name = max(found, key=lambda name: found[name], default="")
    storm.note(name)
    kill(storm.node.running(name))


def score_of(process: psutil.Process) -> int:
    try:
        with open(f"/proc/{process.pid}/oom_score") as file:
            return int(file.read())
    except OSError:
        return -1


def no_descriptor(storm: Storm) -> None:
    """A program may open nothing more for a while."""
    name = storm.chance.choice(["cpu", "gpu", "router", "api", "webhooks"])
    process = storm.node.running(name)
    storm.note(name)
    if process is None:
        return
    try:
        soft, hard = process.rlimit(psutil.RLIMIT_NOFILE)
        process.rlimit(psutil.RLIMIT_NOFILE, (process.num_fds(), hard))
        storm.sleep(1, 3)
        process.rlimit(psutil.RLIMIT_NOFILE, (soft, hard))
    except psutil.NoSuchProcess:
        pass
