"""The same products by a library, where one is there: PyTorch's int8 and bf16 matrix products.

In a process of its own, with whichever Python has PyTorch: this one's, or the machine's python3.
"""

import json
import subprocess
import sys
from typing import Any, Final

Shape = tuple[int, int, int]  # tokens, rows, cols
SECONDS: Final = 120

PROGRAM: Final = """
import json, sys, torch
shapes, found = json.load(sys.stdin), []

def seconds(work):
    times = []
    for _ in range(8):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(4):
            work()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / 4000)
    return sorted(times[3:])[2]

for tokens, rows, cols in shapes:
    rates = {}
    for kind in ("int8", "bf16"):
        try:
            if kind == "int8":
                a = torch.randint(-127, 128, (tokens, cols), dtype=torch.int8, device="cuda")
                b = torch.randint(-127, 128, (rows, cols), dtype=torch.int8, device="cuda").t()
                once = seconds(lambda: torch._int_mm(a, b))
            else:
                a = torch.randn(tokens, cols, dtype=torch.bfloat16, device="cuda")
                b = torch.randn(rows, cols, dtype=torch.bfloat16, device="cuda").t()
                once = seconds(lambda: a @ b)
            rates[f"torch_{kind}"] = round(2 * tokens * rows * cols / once / 1e12, 1)
        except RuntimeError as error:
            rates[f"torch_{kind}_refused"] = str(error).splitlines()[0][:80]
    found.append(rates)
print(json.dumps(found))
"""


def library_rates(shapes: list[Shape]) -> dict[Shape, dict[str, Any]]:
    """TOPS of each product; {} where there is no library, or it fails."""
    for python in (sys.executable, "python3"):
        try:
            done = subprocess.run(
                [python, "-c", PROGRAM], input=json.dumps(shapes), capture_output=True, text=True,
                timeout=SECONDS,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired):
            continue
        if done.returncode == 0:
            rates = json.loads(done.stdout.splitlines()[-1])
            return dict(zip(shapes, rates, strict=True))
    return {}
