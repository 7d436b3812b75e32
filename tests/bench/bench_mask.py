"""What a grammar costs: the vocabulary's tree once, a grammar once, a mask for each token.

    python tests/bench/bench_mask.py [--rounds N]

Of the vocabularies of tests/golden, whose sizes are those of the real models; ms of CPU
time, the least of the rounds.
"""

import argparse
import json
import lzma
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from gguf import GGUFReader

from workers.text.grammar import Wanted, check, grammar_of
from workers.text.mask import Masker, tokenizer_of
from workers.text.text_model import TextModel
from workers.text.vocabulary import build_tokenizer, text_card

GOLDEN = Path(__file__).parents[1] / "golden"
VOCABULARIES = ("vocab_qwen2.gguf.xz", "vocab_qwen35.gguf.xz", "tiny_llama.Q4_0.gguf")
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "b", "c"]}},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
ANSWERS = {
    "schema": (PERSON, {"name": "Ann Other", "age": 33, "tags": ["a", "c"]}),
    "any object": ({"type": "object"}, {"of": {"any": [1, 2.5, "some text that goes on"]}}),
}


def model_of(path: Path) -> TextModel:
    with tempfile.NamedTemporaryFile(suffix=".gguf") as unpacked:
        if path.suffix == ".xz":
            unpacked.write(lzma.decompress(path.read_bytes()))
            unpacked.flush()
            path = Path(unpacked.name)
        fields = {name: field.contents() for name, field in GGUFReader(path).fields.items()}
    size = len(fields["tokenizer.ggml.tokens"])
    card = {"context_length": 4096, "vocab_size": size, "weights_digest": ""}
    return TextModel(path.name, {**card, "text": text_card(fields, size)}, build_tokenizer(fields))


def timed(call: Callable[[], object]) -> float:
    begin = time.process_time()
    call()
    return 1000 * (time.process_time() - begin)


def masks(text: TextModel, masker: Masker, grammar: str, answer: str) -> list[float]:
    """Of each token of the answer."""
    mask, times = masker.start(grammar), []
    for token_id in text.encode_inside(answer):
        times.append(timed(mask.allowed))
        assert mask.takes(token_id)
        mask.advance(token_id)
    return times


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    print("vocabulary | tree | grammar | check | compile | mask, mean | mask, worst")
    for name in VOCABULARIES:
        text = model_of(GOLDEN / name)
        tree = min(timed(lambda text=text: tokenizer_of(text)) for _ in range(2))
        for what, (schema, answer) in ANSWERS.items():
            grammar = grammar_of(Wanted("hermes", schema=schema))
            check.cache_clear()
            checked = timed(lambda grammar=grammar: check(grammar))
            masker = Masker(text)
            masker.prepare(grammar_of(Wanted("hermes", schema={"type": "integer"})))
            compiled = timed(lambda masker=masker, grammar=grammar: masker.prepare(grammar))
            all_times = [masks(text, masker, grammar, json.dumps(answer)) for _ in range(rounds)]
            times = [min(column) for column in zip(*all_times, strict=True)]
            row = (tree, checked, compiled, sum(times) / len(times), max(times))
            shown = " | ".join(f"{value:.2f}" for value in row)
            print(f"{text.vocab_size} {name} | {what} | {shown}")


if __name__ == "__main__":
    main()
