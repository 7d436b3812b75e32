"""What crosses Redis: the request, the events, and the name of every key (page: WIRE.md).

Key names are composed here and nowhere else. Values are msgpack, never pickle.
"""

import re
from typing import Any, Final

import msgspec

from workers.cost import CostModel
from workers.fleet.names import pools_of

VERSION: Final = 1
SLA_CLASSES: Final = ("realtime", "standard", "batch")  # those that every node has (sla.py)
WEBHOOKS: Final = "webhooks"  # the queue of attempts to post one
TERMINAL: Final = ("finished", "failed", "cancelled", "expired")
STATES: Final = ("accepted", "queued", "running", *TERMINAL)
EVENTS: Final = ("started", *TERMINAL)  # of a request, that a webhook may be told of
GROUP: Final = "router"  # the consumer group of the request streams
KEEP_S: Final = 30 * 86400  # unfinished work that nobody touches for so long is gone
DEFAULT_TENANT: Final = "default"
DEFAULT_SECRET: Final = "default"
SECRET_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
SESSION_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")  # and no "--": a name, not a path
SESSION_MODES: Final = ("append", "history")


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """How the next token is drawn; the meanings are OpenAI's (reference: docs/sampling.md).

    max_tokens   output tokens at most, >= 1
    temperature  0 is greedy, 0..2
    top_k        0 is off
    seed         0..2^64-1; admission derives one from the request id when the client gave none
    choice       which of several answers to the same prompt and seed, from 0
    logit_bias   (token id, what is added to its logit), ascending ids
    logprobs     n: log probabilities of the chosen token and the n most likely ones, 0..20;
                 0: of the chosen one alone; None in requests that did not ask
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
    choice: int = 0
    logit_bias: tuple[tuple[int, float], ...] = ()
    logprobs: int | None = None


class WebhookTarget(msgspec.Struct, frozen=True, kw_only=True):
    """Where the result is posted. events: a subset of EVENTS; empty means all of TERMINAL."""

    url: str
    events: tuple[str, ...] = ()
    secret_id: str = DEFAULT_SECRET


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """An admitted request. Made by router.admit only; a session's prompt is composed later.

    id             full id as keys use it: ID, or TENANT--ID for all tenants but the default
    token_ids      the prompt, rendered and encoded
    arrival_ms     Unix time of arrival at the node
    deadline_ms    Unix time after which the request expires; None: never
    session_id     the tenant's own name of the session; None: the request belongs to none
    session_mode   "append", "history", or "": what the messages are is seen from them
    messages       what the client sent, as router/messages.py makes it; only with session_id, and
                   then token_ids is empty until the prompt is composed (workers/session/compose.py)
    variables      what the client tells the chat template beside the messages
    tools          the functions that a session's template is told of; else they are in token_ids
    grammar        of the answer, as workers/text/grammar.py makes it; "": it is free
    composed       token_ids is the whole prompt, the session's earlier turns included
    traceparent    where its trace goes on (workers/trace/parent.py); "": it has none
    """

    v: int = VERSION
    id: str
    tenant: str = DEFAULT_TENANT
    model: str
    token_ids: tuple[int, ...]
    sla: str = "standard"
    arrival_ms: int
    deadline_ms: int | None = None
    params: SamplingParams
    webhook: WebhookTarget | None = None
    metadata: dict[str, Any] = msgspec.field(default_factory=dict)
    session_id: str | None = None
    session_mode: str = ""
    messages: tuple[dict[str, Any], ...] = ()
    variables: dict[str, bool | int | float | str] = msgspec.field(default_factory=dict)
    tools: tuple[dict[str, Any], ...] = ()
    grammar: str = ""
    composed: bool = False
    traceparent: str = ""

    @property
    def own_id(self) -> str:
        """What its tenant calls it, and what is told to it."""
        return split_id(self.id)[1]

    @property
    def session(self) -> str | None:
        """The session's full id, as keys use it."""
        return None if self.session_id is None else full_id(self.tenant, self.session_id)


class Planned(msgspec.Struct, frozen=True, kw_only=True):
    """What the router planned for a request, beside its pool and the reason.

    kind               "gpu", "cpu", "gpu+cpu", "cpu+gpu": who prefills and decodes; "": not said
    then_pool          the pool that decodes after the prefill; None: the one that prefills
    why                the kind of the reason, one word (router/placement.py); "": not said
    predicted_ttft_ms  ms from arrival to the first token; None: nothing was predicted
    """

    kind: str = ""
    why: str = ""
    then_pool: str | None = None
    predicted_ttft_ms: float | None = None


class Pressure(msgspec.Struct, frozen=True, kw_only=True):
    """How full a class is, for its producers; a router says it each second.

    waiting    requests of the class that wait for a pool
    most       as many may wait at present; a new one is taken while fewer do
    wait_ms    predicted for a new one until it begins; None: nothing can be predicted
    retry_ms   until a new one would be taken; 0: now
    """

    waiting: int
    most: int
    wait_ms: float | None = None
    retry_ms: float = 0.0


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """What a request took. cached_tokens: of the prompt's, those that nobody computed for it."""

    prompt_tokens: int
    output_tokens: int
    cached_tokens: int = 0


class TokenEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One output token, journalled as entry 0-(index + 1) of the request's token stream.

    index     position among the output tokens, from 0
    text      what may be shown now: complete UTF-8, never part of a stop string; "" while held back
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
    session_id     the request's session; written by whatever ends it, from the job's hash
    forked_at      token position at which the prompt left the session's log; None: it did not
    sla            the class that it had in the end; written from the job's hash
    pool, reason   who ran it last, and why there; written from the job's hash
    retry_after_s  seconds after which it would be taken, of one refused as "overloaded" or
                   "rate_limited"
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
    session_id: str | None = None
    forked_at: int | None = None
    sla: str | None = None
    retry_after_s: int | None = None
    pool: str | None = None
    reason: str | None = None


class Keys:
    """Names of all keys under one prefix; on Redis Cluster the prefix is a hash tag: {lockstep}.

    classes    the node's SLA classes, most urgent first: each has a stream
    node       the node's name in its fleet; "": it is alone
    own_pools  the node's pools, in order of preference
    """

    def __init__(self, prefix: str, classes: tuple[str, ...] = SLA_CLASSES, node: str = "") -> None:
        self.prefix = prefix
        self.classes = classes
        self.node = node
        self.own_pools = pools_of(node)
        self.rq_prefix = f"{prefix}:rq"
        self.dead = f"{prefix}:dead"
        self.active = f"{prefix}:active"
        self.ends = f"{prefix}:ends"  # counters: "CLASS STATUS"
        self.promises = f"{prefix}:promises"  # counters: "CLASS kept", "CLASS ttft", ...
        self.refusals = f"{prefix}:refusals"  # counters: codes
        self.sla = f"{prefix}:sla"  # what the classes promise, for the scripts
        self.placements = f"{prefix}:placements"  # counters: kinds of plans
        self.control = f"{prefix}:control"
        self.again = f"{prefix}:again"  # a channel that nobody hears: see Store.accept
        self.nodes = f"{prefix}:nodes"  # a fleet's nodes by the second in which they were heard
        self.speeds = f"{prefix}:speeds"  # of the same, what each can do
        self.longest = f"{prefix}:longest"  # of the same, tokens of a sequence
        self.fleet = f"{prefix}:fleet"  # what all its nodes have in common
        self.api_keys = f"{prefix}:keys"  # by name, without an expiry: ingest/access/keys.py
        self.replanned = self.of_node("replanned", node)  # a router has just done it
        self.pools = self.pools_of(node)
        self.waiting = f"{prefix}:waiting"  # ids that wait for their session
        self.deadlines = f"{prefix}:deadlines"  # ids by their deadlines
        self.webhooks_due = f"{prefix}:webhooks:due"
        self.jobs = f"{prefix}:jobs"  # ended ones by the second in which their hash expires
        self.failures = f"{prefix}:failures"  # ids, the last one first
        self.traces = f"{prefix}:traces"  # what is to be told as a trace
        self.webhook_queue = self.queue(WEBHOOKS)
        self.rq_suspended = f"{self.rq_prefix}:suspended"

    def requests(self, sla: str) -> str:
        return f"{self.prefix}:requests:{sla}"

    def job(self, request_id: str) -> str:
        return f"{self.prefix}:job:{request_id}"

    def jobs_of(self, tenant: str) -> str:
        """A tenant's jobs by arrival."""
        return f"{self.prefix}:jobs:{tenant}"

    def response(self, tenant: str, response_id: str) -> str:
        """A response that is kept for those that follow it."""
        return f"{self.prefix}:response:{full_id(tenant, response_id)}"

    def tokens(self, request_id: str) -> str:
        return f"{self.prefix}:tokens:{request_id}"

    def of_node(self, name: str, node: str) -> str:
        """A key that each node of a fleet has for itself."""
        return f"{self.prefix}:{name}:{node}" if node else f"{self.prefix}:{name}"

    def turn(self, what: str) -> str:
        """Which node of a fleet does what only one is to do."""
        return f"{self.prefix}:turn:{what}"

    def pools_of(self, node: str) -> str:
        """Names of the reports of a node's pools."""
        return self.of_node("pools", node)

    def node_report(self, node: str) -> str:
        """What a node of a fleet says of itself."""
        return f"{self.prefix}:node:{node}"

    def pool(self, pool: str, worker: str) -> str:
        return f"{self.prefix}:pool:{pool}:{worker}"

    def pressure(self, sla: str) -> str:
        """How full a class is."""
        return f"{self.prefix}:pressure:{sla}"

    def bell(self, queue: str) -> str:
        return f"{self.prefix}:bell:{queue}"

    def webhook(self, request_id: str) -> str:
        return f"{self.prefix}:webhook:{request_id}"

    def router(self, name: str) -> str:
        return f"{self.prefix}:router:{name}"

    def queue(self, name: str) -> str:
        return f"{self.rq_prefix}:queue:{name}"

    def session(self, session: str) -> str:
        """Who holds a session, by its full id."""
        return f"{self.prefix}:session:{session}"

    def session_waiting(self, session: str) -> str:
        """Requests of a session that wait for their turn."""
        return f"{self.session(session)}:waiting"

    def session_log(self, session: str) -> str:
        """What a session's next owner needs when its files are on another node."""
        return f"{self.session(session)}:log"

    def rq_job(self, job_id: str) -> str:
        return f"{self.rq_prefix}:job:{job_id}"

    def wip(self, queue: str) -> str:
        """RQ's registry of started jobs: members ID:EXECUTION, each one a lease."""
        return f"{self.rq_prefix}:wip:{queue}"

    def worker(self, name: str) -> str:
        return f"{self.rq_prefix}:worker:{name}"

    def worker_executions(self, name: str) -> str:
        return f"{self.rq_prefix}:worker:{name}:executions"

    def lasting(self) -> list[str]:
        """Keys that belong to the node: they expire when nobody has renewed them for KEEP_S."""
        ours = [
            self.dead,
            self.active,
            self.waiting,
            self.deadlines,
            self.webhooks_due,
            *map(self.requests, self.classes),
        ]
        rq = ("queues", "workers", *self._of_each_queue("workers", "queue", "wip"))
        return ours + [f"{self.rq_prefix}:{name}" for name in rq]

    def registries(self) -> list[str]:
        """RQ's sorted sets of jobs that ended, by the second in which their results expire."""
        names = self._of_each_queue("finished", "failed", "canceled")
        return [f"{self.rq_prefix}:{name}" for name in names]

    def _of_each_queue(self, *kinds: str) -> list[str]:
        return [f"{kind}:{queue}" for kind in kinds for queue in (*self.own_pools, WEBHOOKS)]


def full_id(tenant: str, request_id: str) -> str:
    """The id that keys and RQ use, of the id that the tenant uses."""
    return request_id if tenant == DEFAULT_TENANT else f"{tenant}--{request_id}"


def split_id(request_id: str) -> tuple[str, str]:
    """(tenant, the tenant's own id) of a full id."""
    tenant, mark, own_id = request_id.partition("--")
    return (tenant, own_id) if mark else (DEFAULT_TENANT, request_id)


def token_entry_id(index: int) -> str:
    """Stream entry id of output token `index`."""
    return f"0-{index + 1}"


END_ENTRY_ID: Final = "1-0"


class PoolLoad(msgspec.Struct, frozen=True, kw_only=True):
    """What a pool says of itself, every second; gone when it stops saying so.

    state           "loading", "ready", "stopping", "absent" (no such processor on this machine),
                    "failed" (it is full or broken, and will be tried again); note says why
    began_ms        Unix time at which a ready one began; 0: not said
    running         requests that it has claimed, of capacity places
    progress        counts layers computed: moves whenever anything moves
    kv              what the KV tier counts: hits, bytes, seconds saved; names are kv_tier's
    cost            what its steps cost; None: it has not said so yet, and nothing is predicted
    step_tokens     of one step at most; 0: not said
    budget_ms       of one step, about, its setting step_budget_ms; 0: not said
    decoding        sequences that get a token in each step
    context_tokens  positions that those read, all of them together
    prefill_tokens  of the prompts it has claimed, those that are still to be computed
    prefill_by_class  the same, by class; empty: not said
    waiting_blocks  KV blocks that requests want which it has claimed and has no memory for yet
    output_tokens   of requests that ended lately, by class: fading means; absent: none has
    by_class        requests that it has claimed, by class
    prompts_per_s   prompt tokens that it computed lately, by class: of the last half minute
    outputs_per_s   the same of output tokens, of requests that ended
    step_ms, batch  mean duration of a step lately; sequences of the last one; 0: there was none
    histograms      of times and sizes, since it began (workers/histograms.py)
    """

    pool: str
    worker: str
    state: str
    note: str = ""
    began_ms: int = 0
    model: str = ""
    running: int = 0
    waiting: int = 0
    capacity: int = 0
    free_blocks: int = 0
    total_blocks: int = 0
    tokens_per_s: float = 0.0
    progress: int = 0
    kv: dict[str, float] = msgspec.field(default_factory=dict)
    cost: CostModel | None = None
    step_tokens: int = 0
    budget_ms: int = 0
    decoding: int = 0
    context_tokens: int = 0
    prefill_tokens: int = 0
    prefill_by_class: dict[str, int] = msgspec.field(default_factory=dict)
    waiting_blocks: int = 0
    output_tokens: dict[str, float] = msgspec.field(default_factory=dict)
    by_class: dict[str, int] = msgspec.field(default_factory=dict)
    prompts_per_s: dict[str, float] = msgspec.field(default_factory=dict)
    outputs_per_s: dict[str, float] = msgspec.field(default_factory=dict)
    step_ms: float = 0.0
    batch: int = 0
    histograms: dict[str, list[float]] = msgspec.field(default_factory=dict)
