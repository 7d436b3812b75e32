"""A pool's process in trouble: `troubled_pool.py POOL STEP_S`.

Its steps take at least so many seconds, and of turns that run it writes each state that it has.
While there is a file of this name in LOCKSTEP_HOME,

    disk-is-full             it is
    dies-before-the-commit   of a turn's log: every token of it is journalled
    dies-after-the-commit    and before anybody hears of it
"""

import errno
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

from kv_tier.files import OsFiles
from workers.pool import build_worker
from workers.session import writer as writer_module
from workers.session.keeper_of_sessions import KeeperOfSessions
from workers.settings import settings

TAKE_SPACE = {"create", "reserve", "write"}


def slow_down(worker, step_s: float) -> None:
    step = worker.engine.step

    def slow_step():
        time.sleep(step_s)
        return step()

    worker.engine.step = slow_step


def fill_disk(mark: Path) -> None:
    perform = OsFiles.perform

    def full(*args, **named):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def perform_if_there_is_room(self, path, operation, *args, **named):
        refused = operation.__name__ in TAKE_SPACE and mark.exists()
        return perform(self, path, full if refused else operation, *args, **named)

    OsFiles.perform = perform_if_there_is_room


def die(home: Path) -> None:
    commit = KeeperOfSessions.commit

    def commit_or_die(self, ended):
        if (home / "dies-before-the-commit").exists():
            time.sleep(0.5)  # the journal is written
            os._exit(137)
        manifest = commit(self, ended)
        if (home / "dies-after-the-commit").exists():
            os._exit(137)
        return manifest

    KeeperOfSessions.commit = commit_or_die


def main(pool: str, step_s: str) -> int:
    fill_disk(settings().home / "disk-is-full")
    die(settings().home)
    writer_module.STATE_EVERY_MS = 0
    worker = build_worker(pool, settings())
    slow_down(worker, float(step_s))
    worker.work()
    return int(worker.crashed)


if __name__ == "__main__":
    os._exit(main(*sys.argv[1:]))
