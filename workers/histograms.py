"""What pools count of times and sizes, and how it crosses Redis: buckets, sum, names in /metrics.

    PoolLoad.histograms   "ttft standard" -> [observations <= bounds[0], <= bounds[1] but above
                          bounds[0], ..., above all bounds, sum of all observations]

Names and units are the field's (Prometheus: seconds; vLLM: what is measured). A pool counts since
it began; Prometheus knows that a counter that fell has begun again.
"""

from typing import Final, NamedTuple

SECONDS: Final = (
    *(0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0),
    3600.0,
)
TOKEN_SECONDS: Final = (
    *(0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.15, 0.2, 0.3, 0.6, 1.2, 5.0),
)
SIZES: Final = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0)
LENGTHS: Final = (*SIZES, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 32768.0, 131072.0)


class Shape(NamedTuple):
    """One family of histograms: its name in /metrics, and the upper ends of its buckets."""

    metric: str
    help: str
    bounds: tuple[float, ...]


OF_CLASS: Final[dict[str, Shape]] = {
    "queue": Shape("request_queue_time_seconds", "arrival to the first step", SECONDS),
    "ttft": Shape("time_to_first_token_seconds", "arrival to the first token", SECONDS),
    "prefill": Shape("request_prefill_time_seconds", "first step to first token", SECONDS),
    "decode": Shape("request_decode_time_seconds", "first token to the last", SECONDS),
    "e2e": Shape("e2e_request_latency_seconds", "arrival to the end", SECONDS),
    "tpot": Shape("time_per_output_token_seconds", "mean of a request", TOKEN_SECONDS),
    "itl": Shape("inter_token_latency_seconds", "from one token to the next", TOKEN_SECONDS),
    "prompt": Shape("request_prompt_tokens", "length of prompts", LENGTHS),
    "output": Shape("request_generation_tokens", "length of answers", LENGTHS),
}
OF_POOL: Final[dict[str, Shape]] = {
    "step": Shape("step_time_seconds", "duration of a step", TOKEN_SECONDS),
    "batch": Shape("step_batch_size", "sequences of a step", SIZES),
}


def split_told(name: str) -> tuple[str, str]:
    """(quantity, class) of a name in PoolLoad.histograms; class "": of the whole pool."""
    quantity, _, sla = name.partition(" ")
    return quantity, sla
