"""What README and docs have a reader run: found on the pages, and how each is run here, or why not.

A command is a line of a `sh` or `console` block, a `python` block, or a span of code that begins
with a program. Whoever writes a new one need do nothing if it goes as it stands there on a node
with the session `docs` and the job `docs-1`. Else give it in AS_IT_IS_RUN, with names in place of
ID and FILE; or in ELSEWHERE, with the test that runs it; or in NOT_RUN, with the reason.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
PAGES: Final = ("README.md", *sorted(f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md")))

PROGRAMS: Final = (
    *("lockstep", "make", "honcho", "rq", "python", "python3", "pip", "uvicorn", "curl", "git"),
    *("redis-cli", "redis-server", "valkey-cli", "valkey-server", "numactl", "taskset", "nvcc"),
    *("nvidia-smi", "apt-get", "systemctl", "systemd-analyze", "journalctl", "sudo", "docker"),
    *("podman", "kubectl", "kubeconform", "helm", "aws", "mc", "npm", "bash", "sh", "source"),
    *("export", "cp", "rsync", "scp", "ssh", "tar", "install", "useradd", "mkdir", "chmod"),
)
COMMAND: Final = re.compile(rf"(?:[A-Z_]+=\S+ )*(?:\.venv/bin/)?(?:{'|'.join(PROGRAMS)}) \S")
RUN_LANGUAGES: Final = ("sh", "console", "python")
# what a reader puts into files; tests/test_readme.py and tests/security/test_redis.py look at some
OTHER_LANGUAGES: Final = ("", "acl", "conf", "ini", "json", "text", "toml", "yaml")
BLOCK: Final = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)

GGUF: Final = f"{ROOT}/tests/golden/tiny_qwen3.Q4_0.gguf"
ADD: Final = f"LOCKSTEP_HOME=added lockstep model add {GGUF} --name"
AS_IT_IS_RUN: Final[Mapping[str, str]] = {
    "lockstep verify ID": "lockstep verify docs-1",
    "lockstep status ID": "lockstep status docs-1",
    "lockstep result ID": "lockstep result docs-1",
    "lockstep session export ID FILE": "lockstep session export docs docs.session",
    "lockstep model add FILE.gguf --name N": f"{ADD} n",
    "lockstep model add PATH.gguf --name N": f"{ADD} n",
    "lockstep model add tests/golden/tiny_qwen3.Q4_0.gguf --name tiny": f"{ADD} n",
    "lockstep model add": f"{ADD} n",
    "lockstep enqueue": "lockstep enqueue text --max-tokens 1",
    "lockstep enqueue --patience 60": "lockstep enqueue text --max-tokens 1 --patience 60",
    "lockstep enqueue 'text' --chat --wait": "lockstep enqueue text --chat --wait --max-tokens 2",
    "lockstep key add": "lockstep key add docs && lockstep key remove docs",
    "lockstep top": "lockstep top --once",
    "lockstep top --fleet": "lockstep top --fleet --once",
    "lockstep dead": "lockstep dead list",
}
ELSEWHERE: Final[Mapping[str, tuple[str, str]]] = {  # the test's file, and what it says there
    "honcho start": ("tests/node/running_node.py", '"honcho", "start"'),
    "lockstep bench queue": ("tests/ingest/command/test_bench.py", '"bench", "queue"'),
    "lockstep bench serve": ("tests/ingest/command/test_bench_serve.py", '"bench", "serve"'),
    "lockstep bench serve --rate 5 --seconds 60 --mix realtime=0.2,standard=0.5,batch=0.3"
    " --report load.html": ("tests/ingest/command/test_bench_serve.py", '"--report"'),
    "lockstep nodes --forget NAME": ("tests/ingest/test_fleet.py", '"nodes", "--forget", "b"'),
    "lockstep doctor": ("tests/node/test_doctor.py", '"doctor"'),
    "lockstep session push --all": (
        "tests/workers/session/test_elsewhere.py",
        '"session", "push", "--all"',
    ),
    "lockstep session pull ID": (
        "tests/workers/session/test_elsewhere.py",
        '"session", "pull", "s"',
    ),
    "lockstep plan": ("tests/ingest/command/test_plan.py", '"plan", *QUICK'),
    "lockstep restart gpu cpu": ("tests/node/test_restart.py", '"restart", "gpu", "cpu"'),
    "make bench-gpu REHEARSE=1": ("tests/ingest/command/test_bench_gpu.py", "rehearse(out, PARTS"),
    "LOCKSTEP_MODEL=tiny LOCKSTEP_GPU=emulate make start": (
        "tests/node/test_gpu_emulated.py",
        '"LOCKSTEP_GPU": "emulate"',
    ),
    "python -m tests.ingest.api_page > docs/api.md": ("tests/ingest/test_api_page.py", "page()"),
}
MINUTES: Final = "takes minutes; what came out stands in tests/bench/RESULTS.md"
GPU: Final = "needs an NVIDIA GPU and its toolkit"
FETCHES: Final = "installs packages for minutes; tests/bench/RESULTS.md has its times, first use"
NOT_RUN: Final[Mapping[str, str]] = {  # what a command begins with
    "make start": FETCHES,
    "make build": FETCHES,
    "LOCKSTEP_MODEL=N make start": FETCHES,
    "LOCKSTEP_WEBHOOK_ALLOW=127.0.0.0/8 make start": FETCHES,
    "source .venv/bin/activate": "there is no .venv where tests run in another environment",
    "pip install": FETCHES,
    ".venv/bin/pip install": FETCHES,
    "git pull": "would change the tree that is tested",
    "numactl": "needs numactl, and a machine with several nodes of memory",
    "make test": "it is what runs this",
    "make test-gpu": GPU,
    "make bench-gpu": GPU,
    "make bench": MINUTES,
    "make bench-kv": MINUTES,
    "make fleet-sim": "takes minutes; what came out stands in tests/bench/FLEET.md",
    "lockstep bench soak": "takes half an hour; what came out stands in tests/bench/RESULTS.md",
    "lockstep model synth --like qwen3.5-27b": "writes 15 GB; tests/workers/model/test_synth.py",
    "make gpu-kit": FETCHES,
    "python -m kernels.cuda.build": GPU,
    "make chaos": "takes minutes; tests/chaos/README.md tells of its runs",
    "make fuzz": "takes minutes; tests/security/README.md tells of its runs",
    "make fuzz-api": "takes minutes; tests/security/README.md tells of its runs",
    "make test-objects": FETCHES,
    "make test-fleet": MINUTES,
    "make audit": "asks a service on the network",
    "redis-cli --cluster create": "needs nine servers; tests/fleet/ha/servers.py makes Clusters",
    "sudo": "needs root",
    "systemctl": "needs systemd",
    "kubectl": "needs a cluster",
    "docker": "needs a container engine",
    "podman": "needs a container engine",
}


def blocks(page: str, *languages: str) -> list[tuple[str, str]]:
    """(language, text) of each block of a page, in order. Raises AssertionError for an unknown."""
    found = BLOCK.findall((ROOT / page).read_text())
    for language, _ in found:
        assert language in RUN_LANGUAGES + OTHER_LANGUAGES, f"{page}: is {language!r} run or not?"
    return [(language, text) for language, text in found if language in languages]


def console_lines(page: str) -> Iterator[str]:
    """What stands behind a prompt."""
    for _, text in blocks(page, "console"):
        lines = [line[2:].strip() for line in text.splitlines() if line.startswith("$ ")]
        yield from (line.removeprefix(".venv/bin/") for line in lines)


def spans(page: str) -> Iterator[str]:
    """Commands in running text and tables."""
    text = BLOCK.sub("", (ROOT / page).read_text())
    for span in re.findall(r"`([^`]+)`", text):
        command = " ".join(span.split())
        if COMMAND.match(command):
            yield command


def lines_of(block: str) -> list[str]:
    """The lines of a sh block, without what is said beside them."""
    lines = (re.sub(r"(^|\s)# .*", "", line).strip() for line in block.splitlines())
    return [line for line in lines if line]


def reason_not_to(command: str) -> str | None:
    """Why a command is not run beside the node; None: it is."""
    if command in ELSEWHERE:
        return f"run by {ELSEWHERE[command][0]}"
    beginnings = [one for one in NOT_RUN if command == one or command.startswith(f"{one} ")]
    return NOT_RUN[max(beginnings, key=len)] if beginnings else None
