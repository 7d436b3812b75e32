"""Named points at which a process is killed on purpose, exactly there (tests/chaos).

LOCKSTEP_KILL_POINTS names a folder, and is read here alone. A file NAME in it is for one process:
who reaches the point NAME first takes the file away and is killed as by `kill -9`. A file `NAME of
ID` stays, and kills everybody who comes there for that request: poison. Without the variable, as
always but in those tests, nothing is looked at.
"""

import os
import signal
from typing import Final

FOLDER: Final = os.environ.get("LOCKSTEP_KILL_POINTS")


def reach(point: str, request_id: str = "") -> None:
    """Die here if it is wanted."""
    if FOLDER is None:
        return
    if request_id and os.path.exists(os.path.join(FOLDER, f"{point} of {request_id}")):
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        os.unlink(os.path.join(FOLDER, point))
    except FileNotFoundError:
        return
    os.kill(os.getpid(), signal.SIGKILL)
