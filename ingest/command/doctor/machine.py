"""The machine and the build: what the node stands on."""

import hashlib
import json
import platform
import resource
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ingest.command import preflight
from ingest.command.doctor.finding import Finding, of_sentences, wrong

FILES_LEAST: Final = 1024  # that one process must be able to have open
TRANSPARENT: Final = Path("/sys/kernel/mm/transparent_hugepage/enabled")
MEMORY: Final = Path("/proc/meminfo")


def examine(root: Path) -> Iterator[Finding]:
    version = tuple(sys.version_info[:2])
    problems = preflight.python_problems(version)
    yield from of_sentences("python-old", "python", problems, platform.python_version())
    compilers = preflight.compiler_problems("gcc")
    yield from of_sentences("compiler-missing", "compiler", compilers, "gcc compiles")
    flags = preflight.cpu_problems(platform.machine(), Path("/proc/cpuinfo").read_text())
    yield from of_sentences("processor-old", "processor", flags, "has AVX2, FMA and F16C")
    yield open_files(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    yield from build(root)


def open_files(most: int) -> Finding:
    """Clients that wait, and files of sessions, are open files."""
    if 0 <= most < FILES_LEAST:
        what = f"a process may have {most} files open"
        return wrong("files-limited", "limits", what, f"ulimit -n {FILES_LEAST}, or more")
    return Finding("limits", f"{most} open files")


def build(root: Path) -> Iterator[Finding]:
    """Whether what is compiled is what the sources say."""
    record = root / "kernels" / "cpu" / "build_hash.json"
    if not record.exists():
        yield wrong("build-missing", "build", "nothing is compiled", "make build")
        return
    hashes: dict[str, dict[str, str]] = json.loads(record.read_text())
    for kind, files in hashes.items():
        stale = [name for name, digest in files.items() if digest_of(root / name) != digest]
        if stale:
            what = f"{kind}: changed since it was built: {', '.join(stale)}"
            yield wrong("build-stale", "build", what, "make build")
        elif not files:
            what = f"{kind}: not built, the slow way runs"
            yield wrong("build-missing", "build", what, "make build")
        else:
            yield Finding("build", f"{kind}: {len(files)} files, as they are now")


def digest_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else ""


def huge_pages(
    wanted: bool, num_bytes: int, switch: Path = TRANSPARENT, memory: Path = MEMORY
) -> Iterator[Finding]:
    """If they are asked for, whether the kernel gives any, and has memory for the weights.

    num_bytes: of the weights
    """
    if not wanted:
        return
    try:
        has_any = "[never]" not in switch.read_text()
    except OSError:  # a kernel without them
        has_any = False
    if not has_any:
        what = "LOCKSTEP_HUGE_PAGES is set, and the kernel gives none"
        yield wrong("huge-pages", "memory", what, f"echo madvise | sudo tee {switch}, or unset it")
        return
    lines = dict(line.split(":", 1) for line in memory.read_text().splitlines() if ":" in line)
    free = int(lines.get("MemAvailable", "0").split()[0]) << 10
    if free < num_bytes:
        what = f"the weights are to be read into {num_bytes >> 20} MiB, and {free >> 20} are free"
        todo = "unset LOCKSTEP_HUGE_PAGES: then they are mapped"
        yield wrong("huge-pages", "memory", what, todo)
    else:
        yield Finding("memory", "huge pages for the weights")
