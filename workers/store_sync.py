"""Syncs the store's log to the disk once a second: `python -m workers.store_sync FOLDER SERVER`.

Valkey's own `appendfsync everysec` keeps writes in its memory while a sync is under way, for up to
two seconds and after it has answered: a kill -9 then takes what was acknowledged. So the embedded
Valkey hands every write to the operating system before it answers and never syncs (appendfsync no);
this process, started just before it, syncs what it wrote. Only the standard library: it stays.
"""

import errno
import os
import signal
import sys
import time

PERIOD_S = 1.0
TAIL = ".incr.aof"  # what Valkey appends to; it syncs its other files itself


def sync_grown(folder: str, synced: dict[str, int]) -> None:
    """Sync each log file that is longer than when it was last synced. Raises OSError."""
    try:
        names = [name for name in os.listdir(folder) if name.endswith(TAIL)]
    except FileNotFoundError:  # the first start is under way
        return
    for name in names:
        try:
            fd = os.open(os.path.join(folder, name), os.O_RDONLY)
        except FileNotFoundError:  # rewritten into a new one, which is synced
            continue
        try:
            size = os.fstat(fd).st_size
            if synced.get(name) != size:
                os.fdatasync(fd)
                synced[name] = size
        finally:
            os.close(fd)


def main(folder: str, server: int) -> None:
    """Until our parent, the server's process, is gone; it may be gone before we begin."""
    synced: dict[str, int] = {}
    while os.getppid() == server:
        try:
            sync_grown(folder, synced)
        except OSError as error:
            print(
                f"the store's log cannot be synced: {error.strerror}", file=sys.stderr, flush=True
            )
            if error.errno == errno.EIO:  # what cannot be kept must not be accepted
                os.kill(server, signal.SIGKILL)
        time.sleep(PERIOD_S)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
