"""The choices of one answer: one for each prompt and each of `n`, each a turn of its own.

A choice is a request like any other: placed, journalled and taken over by itself. Choice 0 has the
client's id and is what a request without `n` would be; the others draw by the same seed and
another choice (workers/engine/sampler.py). What their prompts share is computed once.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import xxhash

from ingest.access.keys import Key
from ingest.desk import Desk
from ingest.errors import refused
from ingest.openai.delivery import CHOICES_MAX, Delivery
from ingest.shapes import Json, lockstep_object, usage_object
from ingest.turn import Answer, EndPiece, Piece, Turn, begin
from workers.text.text_model import TextModel
from workers.timings import timings_of
from workers.wire import Request, Usage, full_id


@dataclass(frozen=True, slots=True)
class Choice:
    """index  of it in the answer; of the prompts' choices each one's come together"""

    index: int
    turn: Turn


def fanned_out(
    fields: Mapping[str, Any], prompts: Sequence[Mapping[str, Any]], n: int, tenant: str
) -> list[dict[str, Any]]:
    """The fields of each choice. prompts: what is each prompt's own."""
    if len(prompts) * n == 1:
        return [{**fields, **prompts[0]}]
    if len(prompts) * n > CHOICES_MAX:
        name = "n" if n > 1 else "prompt"
        asked = f"asks for {len(prompts) * n} choices"
        raise refused(name, f"{asked}; at most {CHOICES_MAX} are offered")
    own_id = str(fields["id"])
    common = {**fields}
    if "seed" not in fields:
        common["seed"] = xxhash.xxh3_64_intdigest(full_id(tenant, own_id).encode())

    listed: list[dict[str, Any]] = []
    for prompt in prompts:
        for choice in range(n):
            name = fields["id"] if not listed else f"{own_id}_{len(listed)}"
            listed.append({**common, **prompt, "id": name, "choice": choice})
    return listed


async def begin_all(
    desk: Desk, listed: Sequence[Mapping[str, Any]], *, key: Key, door: str
) -> list[Choice]:
    """Accepts all of them, or none: what was accepted before a refusal is cancelled."""
    choices: list[Choice] = []
    try:
        for fields in listed:
            choices.append(Choice(len(choices), await begin(desk, fields, key=key, door=door)))
    except BaseException:
        await gone(choices)
        raise
    return choices


async def gone(choices: Sequence[Choice]) -> None:
    """The client left before its answer was complete."""
    for choice in choices:
        await choice.turn.gone()


async def collected(choices: Sequence[Choice]) -> list[Answer]:
    """The complete answers. Raises ApiError when one of them has none."""
    answers = [Answer() for _ in choices]
    async for choice, pieces in merged(choices):
        for piece in pieces:
            answers[choice.index].add(piece)
    return answers


async def merged(choices: Sequence[Choice]) -> AsyncIterator[tuple[Choice, list[Piece]]]:
    """What comes of any of them, as it comes. Raises what the first that fails raises."""
    if len(choices) == 1:
        async for pieces in choices[0].turn.pieces():
            yield choices[0], pieces
        return
    news: asyncio.Queue[tuple[Choice, list[Piece] | None]] = asyncio.Queue()

    async def follow(choice: Choice) -> None:
        async for pieces in choice.turn.pieces():
            news.put_nowait((choice, pieces))
        news.put_nowait((choice, None))

    def ended(task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and task.exception() is not None:
            news.put_nowait((choices[0], None))

    tasks = [asyncio.create_task(follow(choice)) for choice in choices]
    for task in tasks:
        task.add_done_callback(ended)
    try:
        left = len(choices)
        while left:
            choice, came = await news.get()
            if came is not None:
                yield choice, came
                continue
            left -= 1
            for task in tasks:
                if task.done():
                    task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if any(not task.cancelled() and task.exception() for task in tasks):
            await gone(choices)


def head_of(request: Request, text: TextModel, prefix: str, kind: str, how: Delivery) -> Json:
    """What stands in every object of an answer; usage: in every chunk but the one that has it."""
    head: Json = {
        "id": f"{prefix}-{request.own_id}",
        "object": kind,
        "created": request.arrival_ms // 1000,
        "model": request.model,
        "system_fingerprint": f"fp_{text.weights_digest[:12]}",
    }
    return head | {"usage": None} if how.include_usage else head


def usage_of(choices: Sequence[Choice], ends: Sequence[EndPiece]) -> Json:
    """OpenAI's usage of them all: a prompt that several choices share counts once."""
    first_choices = [c.turn.request.params.choice == 0 for c in choices]
    prompts = [end.usage for end, is_first in zip(ends, first_choices, strict=True) if is_first]
    total = Usage(
        prompt_tokens=sum(usage.prompt_tokens for usage in prompts),
        output_tokens=sum(end.usage.output_tokens for end in ends),
        cached_tokens=sum(usage.cached_tokens for usage in prompts),
    )
    said = usage_object(total)
    reasoning = sum(end.reasoning_tokens for end in ends)
    said["completion_tokens_details"] = {"reasoning_tokens": reasoning}
    return said


def with_lockstep(said: Json, choices: Sequence[Choice], ends: Sequence[EndPiece]) -> Json:
    """With what only this node says of an answer; of several choices, also in each of them."""
    known = [
        {
            "timings": timings_of(end.end),
            "lockstep": lockstep_object(choice.turn.request, end.end),
        }
        for choice, end in zip(choices, ends, strict=True)
    ]
    if len(known) > 1:
        for shown, more in zip(said["choices"], known, strict=True):
            shown |= more
    return said | known[0]
