"""What clients ask for: requests at moments, drawn from a workload's distributions by a seed.

Lengths and intervals of one seed are the same at every rate: intervals are only stretched. So two
systems, or two rates, are compared on the same requests.

A conversation's next turn comes when the one before has ended and its think time is over; how many
start is open loop.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import log
from pathlib import Path
from random import Random
from typing import Any, Final

from workers.sla import SlaTable

FILE: Final = Path(__file__).parent / "workloads.toml"
SPREAD: Final = 0.1  # of the length of a prompt that fills a share of the context


@dataclass(frozen=True, slots=True)
class Lengths:
    """Lognormal, whole tokens, cut to [1, most]."""

    median: float
    sigma: float
    most: int

    def draw(self, random: Random) -> int:
        return max(1, min(self.most, round(random.lognormvariate(log(self.median), self.sigma))))


@dataclass(frozen=True, slots=True)
class Talk:
    """A conversation: its mean number of turns, mean think time, share of context at its start."""

    turns: float
    think_s: float
    begins: float


@dataclass(frozen=True, slots=True)
class Part:
    """One of a workload's kinds of requests; max_tokens None: all that the context leaves."""

    sla: str
    share: float
    output: Lengths
    max_tokens: int | None
    prompt: Lengths | None = None
    fill: float = 0.0
    session: Talk | None = None


@dataclass(frozen=True, slots=True)
class Workload:
    """shape: of the gamma distribution of intervals; 1 is a Poisson process."""

    name: str
    says: str
    expects: str
    node: str
    shape: float
    contexts: tuple[int, ...]
    parts: tuple[Part, ...]

    @property
    def starts_per_request(self) -> float:
        """Conversations and single requests that begin, for each request that comes."""
        return sum(part.share / turns_of(part) for part in self.parts)


@dataclass(frozen=True, slots=True)
class Turn:
    """What the next turn of a conversation adds, and how long after the last answer it comes."""

    prompt: int
    output: int
    max_tokens: int
    think_ms: float


@dataclass(frozen=True, slots=True)
class Wish:
    """One request as its client knows it.

    prompt      tokens of the whole prompt, the conversation's earlier turns included
    output      tokens that the model will write
    max_tokens  tokens that the client allows: what is reserved
    history     of the prompt, what the conversation's log holds already
    turns       what this conversation will still ask after this
    """

    id: str
    sla: str
    arrival_ms: float
    prompt: int
    output: int
    max_tokens: int
    session: str | None = None
    history: int = 0
    turns: tuple[Turn, ...] = ()
    context: int = 0


def wishes(
    workload: Workload, context: int, rate: float, seed: int, horizon_s: float
) -> list[Wish]:
    """All that begins within the horizon, by arrival; rate: requests a second, later turns too."""
    random = Random(f"{workload.name} {context} {seed}")
    starts_per_s = rate * workload.starts_per_request
    weights = [part.share / turns_of(part) for part in workload.parts]
    found: list[Wish] = []
    now_ms = 0.0
    while True:
        interval = random.gammavariate(workload.shape, 1 / workload.shape)
        now_ms += 1000 * interval / starts_per_s
        if now_ms > horizon_s * 1000:
            return found
        part = random.choices(workload.parts, weights)[0]
        found.append(wish_of(part, context, now_ms, f"{workload.name}{len(found)}", random))


def wish_of(part: Part, context: int, arrival_ms: float, name: str, random: Random) -> Wish:
    if part.session is not None:
        return first_turn(part, part.session, context, arrival_ms, name, random)
    prompt = prompt_tokens(part, context, random)
    max_tokens = context - prompt if part.max_tokens is None else part.max_tokens
    output = min(part.output.draw(random), max_tokens)
    return Wish(name, part.sla, arrival_ms, prompt, output, max_tokens, context=context)


def prompt_tokens(part: Part, context: int, random: Random) -> int:
    """Leaves room for max_tokens, or for the longest answer."""
    longest = max(1, context - (part.max_tokens or part.output.most))
    if part.prompt is not None:
        return min(longest, part.prompt.draw(random))
    filled = part.fill * context * random.uniform(1 - SPREAD, 1 + SPREAD)
    return max(1, min(longest, round(filled)))


def first_turn(
    part: Part, talk: Talk, context: int, arrival_ms: float, name: str, random: Random
) -> Wish:
    """A conversation that comes back with what it had: as many turns as the context holds."""
    assert part.prompt is not None and part.max_tokens is not None, part
    count = 1
    while random.random() > 1 / talk.turns:
        count += 1
    held = round(talk.begins * context)
    turns: list[Turn] = []
    for _ in range(count):
        prompt, output = part.prompt.draw(random), part.output.draw(random)
        think_ms = 1000 * random.expovariate(1 / talk.think_s)
        if turns and held + prompt + part.max_tokens > context:
            break
        prompt = min(prompt, context - part.max_tokens - held)
        turns.append(Turn(prompt, min(output, part.max_tokens), part.max_tokens, think_ms))
        held += prompt + turns[-1].output
    first = Wish(
        f"{name}-0",
        part.sla,
        arrival_ms,
        prompt=round(talk.begins * context) + turns[0].prompt,
        output=turns[0].output,
        max_tokens=part.max_tokens,
        session=name,
        history=round(talk.begins * context),
        turns=tuple(turns[1:]),
        context=context,
    )
    return first


def next_turn(wish: Wish, end_ms: float) -> Wish | None:
    """What its conversation asks after this answer; None: it is over."""
    if not wish.turns or wish.session is None:
        return None
    turn, history = wish.turns[0], wish.prompt + wish.output
    number = int(wish.id.rpartition("-")[2]) + 1
    return replace(
        wish,
        id=f"{wish.session}-{number}",
        arrival_ms=end_ms + turn.think_ms,
        prompt=history + turn.prompt,
        output=turn.output,
        max_tokens=turn.max_tokens,
        history=history,
        turns=wish.turns[1:],
    )


def turns_of(part: Part) -> float:
    return 1.0 if part.session is None else part.session.turns


def load_workloads() -> tuple[dict[str, Workload], SlaTable]:
    """The fixed set, and the classes that it is held to."""
    values = tomllib.loads(FILE.read_text())
    found = {name: workload_of(name, table) for name, table in values["workload"].items()}
    return found, SlaTable.of(values["sla"])


def workload_of(name: str, table: Mapping[str, Any]) -> Workload:
    parts = tuple(part_of(mix) for mix in table["mix"])
    assert abs(sum(part.share for part in parts) - 1) < 1e-9, f"{name}: shares must add up to 1"
    return Workload(
        name,
        table["says"],
        table["expects"],
        table["node"],
        shape=1.0 if table["arrivals"] == "poisson" else table["shape"],
        contexts=tuple(table["contexts"]),
        parts=parts,
    )


def part_of(mix: Mapping[str, Any]) -> Part:
    wanted = mix["max_tokens"]
    return Part(
        mix["sla"],
        mix["share"],
        Lengths(**mix["output"]),
        max_tokens=None if wanted == "context" else wanted,
        prompt=Lengths(**mix["prompt"]) if "prompt" in mix else None,
        fill=mix.get("fill", 0.0),
        session=Talk(**mix["session"]) if "session" in mix else None,
    )
