"""Keeps one program of the node running: `python -m workers.keeper NAME PROGRAM ARGUMENT...`.

    running ──it ends──► waiting ──delay──► running       the delay doubles while it dies young
       │                    │
       └────── asked ───────┴──► SIGTERM ──at most 3 s──► SIGKILL to its group ──► exit 0

Asked means: SIGTERM, SIGINT or SIGHUP came, or whoever started the node is gone. Nothing else ends
a keeper, so a dying program never ends the node. Promises:

  1. the program runs in its own session; when the keeper is killed, the kernel kills the program
  2. one keeper of a name per LOCKSTEP_HOME
  3. a keeper that was asked exits 0 within 4 s
  4. the store is asked last: all other keepers share a lock, which the store's keeper waits for
  5. LOCKSTEP_HOME/run/NAME.json says how the program is (read by ingest/health/programs.py)

Only the standard library, and little of it: six of these stay in memory.
"""

import fcntl
import json
import os
import select
import signal
import sys
import time
from contextlib import suppress

FIRST_DELAY_S, LONGEST_DELAY_S = 0.1, 30.0
SETTLED_S = 10.0  # a program that lived so long starts from the first delay again
BAD_CONFIG, BAD_CONFIG_DELAY_S = 78, 5.0  # EX_CONFIG: trying again soon cannot help
DRAIN_S, KILL_S = 3.0, 0.4  # for SIGTERM, then for SIGKILL to be seen
STORE_DRAIN_S = 0.4  # the store has only a file to sync
ASKING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
NOT_STARTED = 127  # what a shell says of a command it cannot find
LOCK_S = 5.0  # an earlier keeper of this name may still be stopping


def home() -> str:
    """LOCKSTEP_HOME as workers.settings reads it, without the memory that pydantic takes.

    Raises ValueError and OSError for a lockstep.toml that cannot be read.
    """
    folder = os.environ.get("LOCKSTEP_HOME")
    if folder is None and os.path.exists("lockstep.toml"):
        import tomllib

        with open("lockstep.toml", "rb") as file:
            folder = tomllib.load(file).get("home")
    return folder or "var"


def next_delay(before_s: float, lived_s: float, code: int) -> float:
    """Seconds until the next start, after a wait of before_s and a life of lived_s."""
    if code == BAD_CONFIG:
        return min(max(before_s * 2, BAD_CONFIG_DELAY_S), LONGEST_DELAY_S)
    if lived_s >= SETTLED_S:
        return FIRST_DELAY_S
    return min(max(before_s * 2, FIRST_DELAY_S), LONGEST_DELAY_S)


def ending(code: int) -> str:
    """How a program ended, in words; a negative code is a signal's number."""
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def start_program(program: list[str]) -> int:
    """Process id of the program, in a session of its own, killed by the kernel when we die.

    Raises OSError when there can be no more processes.
    """
    keeper = os.getpid()
    signal.pthread_sigmask(signal.SIG_BLOCK, ASKING)  # one for the child must not meet our handler
    try:
        pid = os.fork()
    except OSError:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ASKING)
        raise
    if pid == 0:
        try:
            become(program, keeper)
        except OSError as error:
            say("error", f"cannot start {program[0]}: {error.strerror}")
        finally:
            os._exit(NOT_STARTED)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ASKING)
    return pid


def become(program: list[str], keeper: int) -> None:
    """In the child: turn into the program."""
    import ctypes  # here only: the keeper itself does without

    os.setsid()
    set_parent_death_signal = 1
    ctypes.CDLL(None).prctl(set_parent_death_signal, int(signal.SIGKILL))
    for number in (*ASKING, signal.SIGPIPE):
        if number == signal.SIGPIPE or signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ASKING)
    if os.getppid() == keeper:  # else it died before prctl could matter
        os.execvp(program[0], program)


def say(level: str, what: str) -> None:
    """A log line in the shape of workers.log; dropped when nobody reads any more."""
    now = time.time()
    clock = time.strftime("%H:%M:%S", time.localtime(now)) + f".{int(now % 1 * 1000):03}"
    with suppress(OSError):
        print(f"{clock} [{level:<9}] {what} part=keeper", file=sys.stderr, flush=True)


class Asked:
    """Whether we were asked to stop: by a signal, or by the death of whoever started the node."""

    def __init__(self) -> None:
        self.yes = False
        self._wake, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake)
        for number in ASKING:
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup
                signal.signal(number, self._on_signal)
        self._poll = select.poll()
        self._poll.register(self._wake, select.POLLIN)
        self._starters = [self._watch(pid) for pid in starters()]

    def _on_signal(self, _number: int, _frame: object) -> None:
        self.yes = True

    def _watch(self, pid: int) -> int:
        try:
            fd = os.pidfd_open(pid)
        except ProcessLookupError:  # gone already
            self.yes = True
            return -1
        self._poll.register(fd, select.POLLIN)
        return fd

    def wait(self, child: int | None, seconds: float | None, *, heed: bool = True) -> bool:
        """Wait for the child's end (then True), for the time, or, if heeded, for being asked."""
        if child is not None:
            self._poll.register(child, select.POLLIN)
        deadline = None if seconds is None else time.monotonic() + seconds
        try:
            while True:
                left = None if deadline is None else max(0.0, deadline - time.monotonic())
                if heed and self.yes:
                    left = 0.0
                ready = {fd for fd, _ in self._poll.poll(None if left is None else left * 1000)}
                self._take(ready)
                if child in ready or left == 0:
                    return child in ready
        finally:
            if child is not None:
                self._poll.unregister(child)

    def _take(self, ready: set[int]) -> None:
        if self._wake in ready:
            os.read(self._wake, 512)
        for fd in ready & set(self._starters):
            self._poll.unregister(fd)
            self.yes = True


def starters() -> list[int]:
    """Whose death ends us: our parent's, and honcho's, which stands behind its helper process."""
    parent = os.getppid()
    found = [parent]
    if "HONCHO_PROCESS_NAME" in os.environ:
        with suppress(OSError), open(f"/proc/{parent}/stat") as file:
            found.append(int(file.read().rsplit(")", 1)[1].split()[1]))
    return [pid for pid in found if pid >= 1]  # 0: outside of our container


class Keeper:
    """One program, kept."""

    def __init__(self, name: str, program: list[str], folder: str) -> None:
        self.name, self.program, self.folder = name, program, folder
        self.is_store = name == "store"
        self.asked = Asked()
        self.state: dict[str, object] = {
            "name": name, "state": "starting", "keeper": os.getpid(), "pid": None,
            "restarts": 0, "started_ms": None, "stopped_ms": None, "last_exit": None,
            "next_start_ms": None,
        }  # fmt: skip
        self.others = os.open(os.path.join(folder, "users-of-store.lock"), os.O_RDWR | os.O_CREAT)

    def report(self, state: str, **changes: object) -> None:
        """Write NAME.json whole: a reader sees the old one or the new one."""
        self.state.update(changes, state=state)
        path = os.path.join(self.folder, self.name + ".json")
        try:
            with open(path + ".tmp", "w") as file:
                json.dump(self.state, file)
            os.replace(path + ".tmp", path)
        except OSError as error:  # a full disk must not end the node
            say("warning", f"{self.name}: cannot write {path}: {error.strerror}")

    def run(self) -> int:
        """Keep the program until asked."""
        if not self.is_store:
            fcntl.flock(self.others, fcntl.LOCK_SH)
        delay_s, restarts = 0.0, 0
        while not self.asked.yes:
            began = time.monotonic()
            code = self.live(restarts)
            if code is None or self.asked.yes:
                break
            lived_s = time.monotonic() - began
            delay_s, restarts = next_delay(delay_s, lived_s, code), restarts + 1
            last = {"how": ending(code), "code": code, "lived_s": round(lived_s, 1)}
            now_ms = time.time_ns() // 1_000_000
            next_ms, last = now_ms + int(delay_s * 1000), last | {"at_ms": now_ms}
            self.report("waiting", pid=None, last_exit=last, next_start_ms=next_ms)
            what = f"{self.name} ended ({ending(code)}) after {lived_s:.1f} s"
            say("warning", f"{what}; starts again in {delay_s:g} s")
            self.asked.wait(None, delay_s)
        now_ms = time.time_ns() // 1_000_000
        self.report("stopped", pid=None, stopped_ms=now_ms, next_start_ms=None)
        return 0

    def live(self, restarts: int) -> int | None:
        """Run the program once: its exit code, or None when we were asked and ended it."""
        try:
            pid = start_program(self.program)
        except OSError as error:  # out of memory, or of processes
            say("error", f"cannot start {self.name}: {error.strerror}")
            return NOT_STARTED
        began = {"started_ms": time.time_ns() // 1_000_000, "next_start_ms": None}
        self.report("running", pid=pid, restarts=restarts, **began)
        return self.watch(pid)

    def watch(self, pid: int) -> int | None:
        """The program's exit code when it ended by itself, None when we were asked and ended it."""
        child = os.pidfd_open(pid)
        try:
            if self.asked.wait(child, None):
                return reap(pid)
            self.report("stopping")
            self.end(pid, child)
            return None
        finally:
            os.close(child)

    def end(self, pid: int, child: int) -> None:
        """SIGTERM, and SIGKILL for what is still there after its time."""
        if self.is_store:
            self.wait_for_others()
        drain_s = STORE_DRAIN_S if self.is_store else DRAIN_S
        signal.pidfd_send_signal(child, signal.SIGTERM)
        if not self.asked.wait(child, drain_s, heed=False):
            say("warning", f"{self.name} did not stop in time and is killed")
            kill_group(pid)
            if not self.asked.wait(child, KILL_S, heed=False):
                return  # stuck in the kernel: nobody can do more
        reap(pid)

    def wait_for_others(self) -> None:
        """Until no other keeper is left, at most as long as one of them may take."""
        deadline = time.monotonic() + DRAIN_S + 0.1
        while time.monotonic() < deadline:
            try:
                return fcntl.flock(self.others, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(0.02)


def kill_group(pid: int) -> None:
    """Kill the program and what it started, as far as that stayed in its group."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def reap(pid: int) -> int:
    """Exit code of the ended program; what it left behind in its group is killed first."""
    kill_group(pid)  # before waitpid: until then the number is still ours
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def only_keeper(name: str, folder: str) -> bool:
    """Lock the name for as long as we live; False when another keeper goes on holding it."""
    lock = os.open(os.path.join(folder, name + ".lock"), os.O_RDWR | os.O_CREAT)
    deadline = time.monotonic() + LOCK_S
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.1)


def main(arguments: list[str]) -> int:
    if len(arguments) < 2:
        print("usage: python -m workers.keeper NAME PROGRAM ARGUMENT...", file=sys.stderr)
        return 2
    name, *program = arguments
    os.umask(0o077)  # whatever the node writes is its own to read
    try:
        folder = os.path.join(home(), "run")
    except (ValueError, OSError) as error:
        say("error", f"lockstep.toml cannot be read: {error}")
        return 1
    try:
        os.makedirs(folder, exist_ok=True)
        alone = only_keeper(name, folder)
    except OSError as error:
        say("error", f"cannot write in {folder}: {error.strerror}; set LOCKSTEP_HOME to another")
        return 1
    if not alone:
        say("error", f"{name} already runs from {folder}: stop it, or set another LOCKSTEP_HOME")
        return 1
    return Keeper(name, program, folder).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
