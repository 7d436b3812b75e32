"""Throws damaged GGUF files at the loader: each is refused in one line, or becomes a model.

    python tests/slow/fuzz_loader.py [--inputs 10000] [--seed 0]

Every input is a golden file with some of its bytes changed: flipped, cut, doubled, or a length, a
count, a type, an offset of its metadata set to a hard value. A child process of its own (memory
bounded to 1 GiB above what it starts with, 20 s of processor time for each input) adds them one
after the other; the parent names the input at which it died. Prints one JSON object.
"""

import argparse
import json
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))  # run as a program, from anywhere

from workers.model import catalog  # noqa: E402  needs the line above
from workers.model.config import BadModel  # noqa: E402
from workers.model.gguf_scan import scan  # noqa: E402

GOLDEN = ROOT / "tests" / "golden"
SECONDS = 20
HARD = [0, 1, 2**7, 2**8 - 1, 2**15, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**62, 2**63, 2**64 - 1]


class Hang(BaseException):
    """One input took more than SECONDS of processor time."""


def damaged(rng: random.Random, whole: bytes, header_bytes: int) -> bytes:
    """The file with one to four things wrong, most of them in the metadata."""
    data = bytearray(whole)
    for _ in range(rng.choice([1, 1, 1, 2, 4])):
        within = min(header_bytes, len(data)) if rng.random() < 0.9 else len(data)
        at = rng.randrange(within)
        kind = rng.randrange(6)
        if kind == 0:
            data[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            data[at] = rng.randrange(256)
        elif kind == 2:
            size = rng.choice([4, 8])
            value = rng.choice(HARD) % 2 ** (8 * size)
            data[at : at + size] = value.to_bytes(size, "little")
        elif kind == 3:
            del data[at : at + rng.randrange(1, 40)]
        elif kind == 4:
            data[at:at] = data[at : at + rng.randrange(1, 40)]
        else:
            del data[rng.randrange(len(data)) :]
        if len(data) < 8:
            break
    return bytes(data)


def outcome(home: Path, path: Path) -> str:
    """refused, or made. Raises what the loader must not raise."""
    try:
        catalog.add(path, "fuzzed", home, None)
    except BadModel as error:
        said = str(error)
        assert "\n" not in said and len(said) < 2000, said
        assert not list((home / "models").glob("*/*")), "something is left behind"
        return "refused"
    catalog.remove(home, "fuzzed")
    return "made"


def try_all(seed: int, begin: int, end: int) -> None:
    """The child: one line for each input it has survived."""
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    address_space = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    most = max(address_space, used) + (1 << 30)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    signal.signal(signal.SIGVTALRM, lambda *_: (_ for _ in ()).throw(Hang()))
    files = sorted(GOLDEN.glob("tiny_*.gguf"))
    wholes = [(path.read_bytes(), scan(path).end) for path in files]
    with tempfile.TemporaryDirectory() as folder:
        for index in range(begin, end):
            rng = random.Random(f"{seed}-{index}")
            path = Path(folder) / "fuzzed.gguf"
            path.write_bytes(damaged(rng, *wholes[rng.randrange(len(wholes))]))
            signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
            print(index, outcome(Path(folder), path), flush=True)
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            path.unlink()
    print("rss", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--child", type=int, nargs=2, default=None)
    args = parser.parse_args()
    if args.child:
        try_all(args.seed, *args.child)
        return 0
    began, counts, failures, peak = time.time(), Counter(), [], 0
    begin = 0
    while begin < args.inputs:
        end = min(begin + 500, args.inputs)
        command = [sys.executable, __file__, "--seed", str(args.seed)]
        command += ["--child", str(begin), str(end)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        lines = [line.split() for line in done.stdout.splitlines()]
        counts.update(what for index, what in lines if index != "rss")
        peak = max([peak, *(int(what) for index, what in lines if index == "rss")])
        survived = sum(index != "rss" for index, _ in lines)
        if done.returncode:
            failures.append({"input": begin + survived, "said": done.stderr.strip()[-300:]})
            survived += 1
        begin += survived
    said = {"inputs": args.inputs, "seed": args.seed, **counts, "failures": failures}
    print(json.dumps(said | {"peak_mib": peak >> 20, "seconds": round(time.time() - began)}))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
