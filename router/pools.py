"""What placement looks at: the requests, and the pools with what runs and waits in them.

Plain values, made from reports, queues and hashes; nothing here decides or waits.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, TypeVar

from workers.cost import CostModel
from workers.fleet.names import PROCESSORS
from workers.wire import PoolLoad, Request

Number = TypeVar("Number", int, float)
BLOCK_TOKENS: Final = 256  # token positions of one KV block, as pools count them
STEP_TOKENS: Final = 512  # of one step, where a pool has not said it
LETTERS_PER_TOKEN: Final = 4  # of messages that are not rendered yet; a guess
GUESSED_OUTPUT: Final = 256.0  # tokens, while no request has ended


@dataclass(frozen=True, slots=True)
class Wanted:
    """One request, as placement sees it.

    arrival_ms     Unix time
    prompt_tokens  of a session's request: its history included, as far as that is known
    max_tokens     output tokens at most
    deadline_ms    Unix time, the request's own; None: only its class promises something
    kept_tokens    of the prompt, those that need no computing: files or RAM of the node have them
    output_tokens  made so far
    then           the pool that is to decode it after its prefill; None: the one that prefills it
    gives_way      its prompt is still to be composed: what of max_tokens its pool has no room for
                   then is cut off (workers/session/compose.py)
    """

    request_id: str
    sla: str
    arrival_ms: int
    prompt_tokens: int
    max_tokens: int
    deadline_ms: int | None = None
    kept_tokens: int = 0
    output_tokens: int = 0
    then: str | None = None
    gives_way: bool = False

    @property
    def num_tokens(self) -> int:
        """Prompt and output, if all of max_tokens is used."""
        return self.prompt_tokens + self.max_tokens

    @property
    def blocks(self) -> int:
        """KV blocks that are reserved for it."""
        return -(-self.num_tokens // BLOCK_TOKENS)

    @property
    def uncached(self) -> int:
        """Tokens to be computed before the next output token, one at least."""
        return max(1, self.prompt_tokens + self.output_tokens - self.kept_tokens)


@dataclass(frozen=True, slots=True)
class PoolView:
    """One pool: its workers together, and its queue.

    state            "ready" when one of its workers is, else what they say; "not reporting"
    places           sequences that run at once
    running          requests that are claimed
    sequence_blocks  blocks that its largest worker holds, or held when it was last ready; 0: not
                     said, or long ago
    waiting_blocks   wanted by claimed requests that have no memory yet
    queue            what waits to be claimed, in the order in which it will be
    coming           what another pool prefills and this one is to decode
    The others are as in PoolLoad, summed.
    """

    name: str
    state: str = "ready"
    model: str = ""
    cost: CostModel | None = None
    places: int = 1
    running: int = 0
    free_blocks: int = 0
    total_blocks: int = 0
    sequence_blocks: int = 0
    waiting_blocks: int = 0
    step_tokens: int = STEP_TOKENS
    budget_ms: int = 0
    decoding: int = 0
    context_tokens: int = 0
    prefill_tokens: int = 0
    prefill_by_class: Mapping[str, int] = field(default_factory=dict)
    output_tokens: Mapping[str, float] = field(default_factory=dict)
    by_class: Mapping[str, int] = field(default_factory=dict)
    prompts_per_s: Mapping[str, float] = field(default_factory=dict)
    outputs_per_s: Mapping[str, float] = field(default_factory=dict)
    queue: tuple[Wanted, ...] = ()
    coming: tuple[Wanted, ...] = ()

    @property
    def is_ready(self) -> bool:
        return self.state == "ready"

    def output_of(self, wanted: Wanted) -> float:
        """Output tokens that are still to be expected of a request, 1 at least."""
        seen = self.output_tokens.get(wanted.sla)
        if seen is None:
            known = self.output_tokens.values()
            seen = sum(known) / len(known) if known else GUESSED_OUTPUT
        left = wanted.max_tokens - wanted.output_tokens
        return max(1.0, min(left, max(seen - wanted.output_tokens, seen / 2)))

    def holds(self, num_tokens: int) -> bool:
        """Whether its memory holds one sequence of so many tokens when nothing else is there."""
        return num_tokens <= self.sequence_blocks * BLOCK_TOKENS or not self.sequence_blocks


def wanted_of(request: Request, session: Mapping[str, Any]) -> Wanted:
    """An admitted request.

    session  what the store knows of its session; empty: it belongs to none, or to a new one
    """
    kept = int(session.get("tokens") or 0)
    prompt = len(request.token_ids)
    if request.messages and not request.composed:
        letters = sum(len(message["content"]) for message in request.messages)
        own = 1 + letters // LETTERS_PER_TOKEN
        is_history = any(message["role"] in ("system", "assistant") for message in request.messages)
        prompt = max(own, kept + 1) if is_history else kept + own
    return Wanted(
        request_id=request.id,
        sla=request.sla,
        arrival_ms=request.arrival_ms,
        prompt_tokens=max(1, prompt),
        max_tokens=request.params.max_tokens,
        deadline_ms=request.deadline_ms,
        kept_tokens=min(kept, max(0, prompt - 1)),
        gives_way=request.session_id is not None and not request.composed,
    )


def views_of(
    loads: Sequence[PoolLoad],
    queues: Mapping[str, Iterable[Wanted]],
    model: str,
    known: Mapping[str, int] = MappingProxyType({}),
    pools: Sequence[str] = PROCESSORS,
) -> tuple[PoolView, ...]:
    """These pools of one node as they are; one that nobody reports is "not reporting".

    known  sequence_blocks of pools that may be away just now, by pool
    """
    return tuple(
        view_of(pool, loads, queues.get(pool, ()), model, known.get(pool, 0)) for pool in pools
    )


def view_of(
    pool: str, loads: Sequence[PoolLoad], queue: Iterable[Wanted], model: str, known: int
) -> PoolView:
    """One pool. Workers that are not ready, or serve another model, add nothing."""
    mine = [load for load in loads if load.pool == pool]
    ready = [load for load in mine if load.state == "ready" and load.model == model]
    if not ready:
        state = mine[0].state if mine else "not reporting"
        if state == "ready":
            state = f"ready for {mine[0].model} only"
        return PoolView(name=pool, state=state, places=0, sequence_blocks=known, queue=tuple(queue))
    return PoolView(
        name=pool,
        model=model,
        cost=next((load.cost for load in ready if load.cost is not None), None),
        places=sum(max(load.capacity, 1) for load in ready),
        running=sum(load.running for load in ready),
        free_blocks=sum(load.free_blocks for load in ready),
        total_blocks=sum(load.total_blocks for load in ready),
        sequence_blocks=max(load.total_blocks for load in ready),
        waiting_blocks=sum(load.waiting_blocks for load in ready),
        step_tokens=max(load.step_tokens for load in ready) or STEP_TOKENS,
        budget_ms=max(load.budget_ms for load in ready),
        decoding=sum(load.decoding for load in ready),
        context_tokens=sum(load.context_tokens for load in ready),
        prefill_tokens=sum(load.prefill_tokens for load in ready),
        output_tokens={s: n for load in ready for s, n in load.output_tokens.items()},
        prefill_by_class=added(load.prefill_by_class for load in ready),
        by_class=added(load.by_class for load in ready),
        prompts_per_s=added(load.prompts_per_s for load in ready),
        outputs_per_s=added(load.outputs_per_s for load in ready),
        queue=tuple(queue),
    )


def added(counts: Iterable[Mapping[str, Number]]) -> dict[str, Number]:
    """What is counted by class, of all workers together."""
    total: dict[str, Number] = {}
    for count in counts:
        for sla, number in count.items():
            total[sla] = total[sla] + number if sla in total else number
    return total
