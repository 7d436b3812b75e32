"""What crosses Redis: the request, the events, and the name of every key. WIRE.md is the page to this file.

Key names are composed here and nowhere else. Values are msgpack, never pickle.
"""

from typing import Any, Final

import msgspec

VERSION: Final = 1
SLA_CLASSES: Final = ("realtime", "standard", "batch")  # most urgent first
POOLS: Final = ("gpu", "cpu")
TERMINAL: Final = ("finished", "failed", "cancelled", "expired")
GROUP: Final = "router"  # the consumer group of the request streams


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """How the next token is drawn; the meanings are OpenAI's (reference: README, "Sampling").

    max_tokens   output tokens at most, >= 1
    temperature  0 is greedy, 0..2
    top_k        0 is off
    seed         0..2^64-1; admission derives one from the request id when the client gave none
    logprobs     0 is off; n: the chosen token's and the n most likely ones' log probabilities, <= 20;
                 None in requests that did not ask
    """

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    stop: tuple[str, ...] = ()
    seed: int = 0
    logprobs: int | None = None


class WebhookTarget(msgspec.Struct, frozen=True, kw_only=True):
    """Where the result is posted. events: subset of TERMINAL statuses; empty means all."""

    url: str
    events: tuple[str, ...] = ()
    secret_id: str = "default"


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """An admitted request. Made by router.admit only, and never changed after it.

    id             full id as keys use it: ID, or TENANT--ID for tenants other than "default"
    token_ids      the prompt, rendered and encoded
    arrival_ms     Unix time of arrival at the node
    deadline_ms    Unix time after which the request expires; None: never
    """

    v: int = VERSION
    id: str
    tenant: str = "default"
    model: str
    token_ids: tuple[int, ...]
    sla: str = "standard"
    arrival_ms: int
    deadline_ms: int | None = None
    params: SamplingParams
    webhook: WebhookTarget | None = None
    metadata: dict[str, Any] = msgspec.field(default_factory=dict)


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """What a request took."""

    prompt_tokens: int
    output_tokens: int


class TokenEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One output token, journalled as entry 0-(index + 1) of the request's token stream.

    index     position among the output tokens, from 0
    text      what may be shown now: complete UTF-8, never part of a stop string; "" while text is held back
    digest    16 hex digits, the chain's value after this token
    logprobs  [[token_id, log probability], ...], the chosen token first; None when not asked for
    """

    index: int
    token_id: int
    text: str
    digest: str
    logprobs: list[tuple[int, float]] | None = None


class EndEvent(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a request, journalled as entry 1-0: no token can follow.

    status         one of TERMINAL
    finish_reason  "stop", "length", or None unless finished
    text           what was held back and may be shown now
    error          why, in words, unless finished
    code           "bad_request", "numeric_error", "poison", "cancelled", "expired", ... or None
    """

    status: str
    finish_reason: str | None = None
    text: str = ""
    error: str | None = None
    code: str | None = None
    digest: str = ""
    usage: Usage | None = None
    ttft_ms: float | None = None
    tpot_ms: float | None = None
    queue_ms: float | None = None


class Keys:
    """Names of all keys under one prefix. On Redis Cluster the prefix is a hash tag, like {lockstep}."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.rq_prefix = f"{prefix}:rq"
        self.dead = f"{prefix}:dead"
        self.active = f"{prefix}:active"
        self.control = f"{prefix}:control"
        self.router_bell = f"{prefix}:bell:router"
        self.webhooks_due = f"{prefix}:webhooks:due"
        self.webhook_queue = self.queue("webhooks")

    def requests(self, sla: str) -> str:
        return f"{self.prefix}:requests:{sla}"

    def job(self, request_id: str) -> str:
        return f"{self.prefix}:job:{request_id}"

    def tokens(self, request_id: str) -> str:
        return f"{self.prefix}:tokens:{request_id}"

    def pool(self, pool: str, worker: str) -> str:
        return f"{self.prefix}:pool:{pool}:{worker}"

    def bell(self, queue: str) -> str:
        return f"{self.prefix}:bell:{queue}"

    def webhook(self, request_id: str) -> str:
        return f"{self.prefix}:webhook:{request_id}"

    def queue(self, name: str) -> str:
        return f"{self.rq_prefix}:queue:{name}"


def token_entry_id(index: int) -> str:
    """Stream entry id of output token `index`."""
    return f"0-{index + 1}"


END_ENTRY_ID: Final = "1-0"


class PoolLoad(msgspec.Struct, frozen=True, kw_only=True):
    """What a pool says of itself, every second; gone when it stops saying so.

    state     "loading", "ready", "absent" (no such processor on this machine)
    progress  counts layers computed: moves whenever anything moves
    """

    pool: str
    worker: str
    state: str
    note: str = ""
    model: str = ""
    running: int = 0
    waiting: int = 0
    capacity: int = 0
    free_blocks: int = 0
    total_blocks: int = 0
    tokens_per_s: float = 0.0
    progress: int = 0
