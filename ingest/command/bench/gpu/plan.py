"""What is measured on a GPU, and with which sizes; a rehearsal has all of it with tiny ones."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from workers.model.synth import LIKES, Like

Row = dict[str, Any]
Tell = Callable[[str], None]
PARTS: Final = ("exact", "copy", "gemv", "gemm", "attention", "decode", "prefill", "move", "both")


@dataclass(frozen=True, slots=True)
class Sizes:
    """Of all measurements.

    like           shape of the stand-in's weights
    rounds         of each kernel; the median counts
    exact_models   of tests/golden, as a pattern
    exact_logits   compared with the CPU, for each architecture at least
    copy_bytes     of the measured copy
    rotated_bytes  of equal matrices that take turns, so that no cache holds them
    launches       timed at once
    gemv_tokens    rows of decode's matrices
    gemm_tokens    rows of prefill's matrices
    step_tokens    of a prefill step
    prefills       lengths of prompts
    sessions       of decode
    context        positions before the decoded ones
    steps          decode steps, timed
    moved          positions of the session that moves
    carried_on     tokens it is continued with on each side
    cpu_sessions   that the CPU decodes beside the GPU's most sessions
    cpu_steps      its steps
    """

    like: Like
    rounds: int
    exact_models: str
    exact_logits: int
    copy_bytes: int
    rotated_bytes: int
    launches: int
    gemv_tokens: tuple[int, ...]
    gemm_tokens: tuple[int, ...]
    step_tokens: int
    prefills: tuple[int, ...]
    sessions: tuple[int, ...]
    context: int
    steps: int
    moved: int
    carried_on: int
    cpu_sessions: int
    cpu_steps: int


REAL: Final = Sizes(
    like=LIKES["qwen3.5-27b"],
    rounds=5,
    exact_models="tiny_*.gguf",
    exact_logits=1_000_000,
    copy_bytes=4 << 30,
    rotated_bytes=1 << 30,
    launches=40,
    gemv_tokens=(1, 4, 16, 64),
    gemm_tokens=(512, 4096),
    step_tokens=2048,
    prefills=(4096, 32768),
    sessions=(1, 4, 16, 64),
    context=1024,
    steps=20,
    moved=8192 + 100,
    carried_on=4,
    cpu_sessions=10,
    cpu_steps=3,
)
TINY: Final = Like(
    "qwen35", "qwen35", 600, False,
    dict(LIKES["qwen3.5-27b"].keys) | {
        "block_count": 4, "context_length": 2048, "embedding_length": 64,
        "feed_forward_length": 96, "attention.head_count": 2, "attention.head_count_kv": 1,
        "attention.key_length": 64, "attention.value_length": 64, "rope.dimension_count": 32,
        "ssm.group_count": 1, "ssm.time_step_rank": 2, "ssm.state_size": 32, "ssm.inner_size": 64,
    },
)  # fmt: skip
REHEARSAL: Final = Sizes(
    like=TINY,
    rounds=1,
    exact_models="tiny_qwen35.*gguf",
    exact_logits=2000,
    copy_bytes=1 << 20,
    rotated_bytes=1 << 16,
    launches=2,
    gemv_tokens=(1, 5),
    gemm_tokens=(66,),
    step_tokens=64,
    prefills=(70,),
    sessions=(1, 5),
    context=40,
    steps=3,
    moved=256 + 20,
    carried_on=2,
    cpu_sessions=2,
    cpu_steps=2,
)


@dataclass(frozen=True, slots=True)
class Plan:
    """One run.

    parts    of PARTS, in this order
    out      where rows are written as they come, and found again by a run that goes on
    seconds  after which no further part begins
    threads  of the CPU's side
    """

    sizes: Sizes
    parts: tuple[str, ...]
    out: Path
    seconds: float
    threads: int
    is_rehearsal: bool
