"""`lockstep eval`: bits and quality of a model, from outside, without a node.

Feeds token ids through the same engine step as the pools and writes the logits of every position,
continues greedily, or measures perplexity. Whatever --chunk, --threads and --beside say, the
numbers are the same (law one).
"""

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Self

import numpy as np
import typer

from ingest.command.company import Company
from ingest.command.failure import USAGE, Failure
from ingest.command.local_engine import Processor, local_engine, model_folder
from ingest.command.perplexity import Perplexity, windows_of
from kernels.arithmetic import ARITHMETIC_VERSION
from kernels.ops import F32
from workers.engine.engine import Engine
from workers.engine.limits import blocks_for
from workers.engine.tokens import OnLogits
from workers.settings import settings
from workers.text.text_model import TextModel
from workers.wire import EndEvent, Request, SamplingParams, TokenEvent

OURS: Final = "ours"
CHUNK: Final = 512  # prefill tokens of a step, when nothing is said
Events = list[TokenEvent | EndEvent]


@dataclass(frozen=True, slots=True)
class Feed:
    """What one run feeds.

    ids     token ids, at least one
    greedy  output tokens that follow them at most; 0: they are not asked for
    beside  other sequences in the same steps
    """

    ids: tuple[int, ...]
    greedy: int
    beside: int


def eval_command(
    model: Annotated[str, typer.Argument(help="Name of a model, or path of a GGUF file.")],
    token_ids: Annotated[Path | None, typer.Option(help="JSON list of ids to feed.")] = None,
    logits: Annotated[Path | None, typer.Option(help="Where to: (tokens, vocab) f32 .npy.")] = None,
    greedy: Annotated[int, typer.Option(min=0, help="Continue by so many tokens.")] = 0,
    perplexity: Annotated[Path | None, typer.Option(help="Text file to measure on.")] = None,
    pool: Annotated[str, typer.Option(help="cpu, gpu or reference.")] = "cpu",
    threads: Annotated[int, typer.Option(min=0, help="Of the CPU; 0: as configured.")] = 0,
    chunk: Annotated[int, typer.Option(min=0, help="Prefill tokens of a step; 0: 512.")] = 0,
    beside: Annotated[int, typer.Option(min=0, max=255, help="Others in the same steps.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Logits, greedy continuation or perplexity of a model, by the pools' own engine.

    A greedy continuation ends early at an end token, which is printed too.
    """
    if (token_ids is None) == (perplexity is None):
        raise Failure("give either --token-ids FILE or --perplexity TEXTFILE", USAGE)
    if perplexity is not None and (logits is not None or greedy):
        raise Failure("--logits and --greedy go with --token-ids", USAGE)
    processor = Processor(pool, threads or settings().num_threads, chunk or CHUNK)
    with model_folder(model, settings().home) as folder:
        if token_ids is not None:
            found = feed(folder, processor, Feed(read_ids(token_ids), greedy, beside), logits)
        else:
            assert perplexity is not None
            found = measure(folder, processor, read_text(perplexity), beside)
    said = {"model": model, "pool": pool, "arithmetic": ARITHMETIC_VERSION} | found
    print(json.dumps(said) if as_json else "\n".join(f"{k:18} {v}" for k, v in said.items()))


def read_ids(path: Path) -> tuple[int, ...]:
    """The token ids of a JSON file. Raises Failure."""
    try:
        ids = json.loads(read_text(path))
    except ValueError as error:
        raise Failure(f"{path} is not JSON: {error}", USAGE) from error
    is_list = isinstance(ids, list) and all(type(i) is int and 0 <= i < 2**31 for i in ids)
    if not is_list or not ids:
        raise Failure(f"{path} must hold a JSON list of token ids, at least one", USAGE)
    return tuple(ids)


def read_text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise Failure(f"{path} cannot be read: {error}", USAGE) from error


class LogitsFile:
    """A .npy of (tokens, vocab) float32, written as rows come; there only when it is whole."""

    def __init__(self, path: Path, num_tokens: int, vocab_size: int) -> None:
        """Raises Failure."""
        self._path, self._part = path, path.with_name(path.name + ".part")
        shape = (num_tokens, vocab_size)
        try:
            self._rows = np.lib.format.open_memmap(self._part, "w+", np.float32, shape)
        except OSError as error:
            raise Failure(f"{path} cannot be written: {error}", USAGE) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._rows.flush()
        if kind is None:
            self._part.rename(self._path)
        else:
            self._part.unlink()

    def take(self, request_id: str, position: int, rows: F32) -> None:
        """Rows past the fed tokens, of a greedy continuation, are not kept."""
        end = min(position + len(rows), len(self._rows))
        if position < end:
            self._rows[position:end] = rows[: end - position]


def feed(folder: Path, processor: Processor, asked: Feed, logits: Path | None) -> dict[str, Any]:
    """Feed ids, write their logits, continue greedily. Raises Failure."""
    text, num_tokens = TextModel.load(folder), len(asked.ids)
    begin_s = time.perf_counter()
    if logits is None:
        events = continued(folder, processor, asked, None)
    else:
        with LogitsFile(logits, num_tokens, text.vocab_size) as file:
            events = continued(folder, processor, asked, file.take)
    seconds = round(time.perf_counter() - begin_s, 3)
    found = {"weights": text.weights_digest, "tokens": num_tokens, "seconds": seconds}
    if logits is not None:
        found |= {"logits": str(logits), "shape": [num_tokens, text.vocab_size]}
    if asked.greedy:
        tokens = [event for event in events if isinstance(event, TokenEvent)]
        found |= {"greedy_ids": [event.token_id for event in tokens]}
        found |= {"digests": [event.digest for event in tokens]}
        found |= {"text": "".join(event.text for event in events)}
    return found


def continued(
    folder: Path, processor: Processor, asked: Feed, on_logits: OnLogits | None
) -> Events:
    """The events of a greedy request of these ids; one token at least."""
    text, ids = TextModel.load(folder), asked.ids
    num_steps = len(ids) // processor.chunk + asked.greedy + 4
    company = Company(text, asked.beside, num_steps, processor.chunk)
    params = SamplingParams(max_tokens=max(1, asked.greedy), temperature=0.0)
    engine = local_engine(
        folder,
        processor,
        max_batch=1 + asked.beside,
        num_blocks=blocks_for(len(ids) + params.max_tokens) + company.num_blocks,
        on_logits=on_logits,
    )
    request = Request(id=OURS, model=text.name, token_ids=ids, arrival_ms=0, params=params)
    return run_beside(engine, company, request, every_logit=on_logits is not None)


def run_beside(engine: Engine, company: Company, request: Request, *, every_logit: bool) -> Events:
    """The events of a request that runs beside others. Raises Failure when it fails."""
    company.gather(engine)
    engine.add(request, every_logit=every_logit)
    events: Events = []
    while True:
        for output in engine.step():
            if output.request_id != request.id:
                company.saw(output)
                continue
            events.append(output.event)
            if isinstance(output.event, EndEvent):
                if output.event.status != "finished":
                    raise Failure(f"{output.event.code}: {output.event.error}")
                return events
        company.keep(engine)


def measure(folder: Path, processor: Processor, content: str, beside: int) -> dict[str, Any]:
    """Perplexity of a text. Raises Failure."""
    text = TextModel.load(folder)
    windows = windows_of(text.encode(content), text)
    if not windows:
        raise Failure("the text is too short: it has fewer than two tokens", USAGE)
    num_steps = len(windows[0].ids) // processor.chunk + 4
    company = Company(text, beside, num_steps, processor.chunk)
    measured = Perplexity(windows)
    engine = local_engine(
        folder,
        processor,
        max_batch=1 + beside,
        num_blocks=blocks_for(len(windows[0].ids) + 1) + company.num_blocks,
        on_logits=measured.take,
    )
    params = SamplingParams(max_tokens=1, temperature=0.0)
    for index, window in enumerate(windows):
        request = Request(
            id=str(index), model=text.name, token_ids=window.ids, arrival_ms=0, params=params
        )
        run_beside(engine, company, request, every_logit=True)
    return {"weights": text.weights_digest} | measured.result()
