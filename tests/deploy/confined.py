"""Runs a command under the system call filter of a systemd unit, as systemd would.

    python -m tests.deploy.confined UNIT COMMAND ARGUMENT...

What of the unit is laid on: SystemCallFilter with its groups (asked of systemd-analyze),
SystemCallErrorNumber=EPERM, NoNewPrivileges, MemoryDenyWriteExecute (the kernel's own, Linux 6.3).
"""

import ctypes
import errno
import os
import re
import subprocess
import sys
from pathlib import Path

ALLOW, ERRNO = 0x7FFF0000, 0x00050000  # libseccomp's actions
NO_NEW_PRIVILEGES, DENY_WRITE_EXECUTE = 38, 65  # of prctl
REFUSE_GAIN = 1


def calls_of(group: str) -> set[str]:
    """Names of all calls of a group such as @system-service, or a call itself."""
    if not group.startswith("@"):
        return {group}
    told = subprocess.run(
        ["systemd-analyze", "syscall-filter", group], capture_output=True, text=True, check=True
    ).stdout
    members = re.findall(r"(?m)^ +(@?[a-z0-9_-]+)$", told)
    assert members, told
    return set().union(*map(calls_of, members))


def allowed(unit: str) -> set[str]:
    """Calls that the unit's text allows: its lists in order, those with ~ taken away."""
    found: set[str] = set()
    for listed in re.findall(r"(?m)^SystemCallFilter=(.*)$", unit):
        named = set().union(*map(calls_of, listed.lstrip("~").split()))
        found = found - named if listed.startswith("~") else found | named
    return found


def confine(unit: str) -> None:
    """From here on this process, and whatever it starts, keeps to it. Raises OSError."""
    calls = allowed(unit)
    libc, seccomp = ctypes.CDLL(None, use_errno=True), ctypes.CDLL("libseccomp.so.2")
    seccomp.seccomp_init.restype = ctypes.c_void_p
    rules = ctypes.c_void_p(seccomp.seccomp_init(ctypes.c_uint32(ERRNO | errno.EPERM)))
    for name in calls:
        number = seccomp.seccomp_syscall_resolve_name(name.encode())
        if number >= 0:  # else it is of another machine
            seccomp.seccomp_rule_add(rules, ctypes.c_uint32(ALLOW), number, 0)
    checked(libc.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0), "no new privileges")
    if "MemoryDenyWriteExecute=yes" in unit:
        checked(libc.prctl(DENY_WRITE_EXECUTE, REFUSE_GAIN, 0, 0, 0), "no writable code")
    checked(seccomp.seccomp_load(rules), "the filter")


def checked(code: int, what: str) -> None:
    if code != 0:
        raise OSError(ctypes.get_errno() or -code, f"{what}: refused")


if __name__ == "__main__":
    confine(Path(sys.argv[1]).read_text())
    os.execvp(sys.argv[2], sys.argv[2:])
