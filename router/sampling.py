"""From a request's fields to SamplingParams: the range of every parameter, and nothing guessed."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import xxhash

from router.refusal import Refused, shown, text_of
from workers.wire import SamplingParams

STOP_MAX: Final = 16  # stop strings
STOP_CHARS_MAX: Final = 256  # of each


@dataclass(frozen=True)
class Range:
    """Legal values of a number: [low, high], or (low, high] when low itself is not allowed."""

    low: float
    high: float
    whole: bool = False
    above_low: bool = False

    def __str__(self) -> str:
        kind = "an integer" if self.whole else "a number"
        if self.above_low:
            return f"{kind} above {self.low} and at most {self.high}"
        return f"{kind} from {self.low} to {self.high}"

    def holds(self, value: Any) -> bool:
        kinds = int if self.whole else int | float
        if isinstance(value, bool) or not isinstance(value, kinds):
            return False
        return (self.low < value if self.above_low else self.low <= value) and value <= self.high


RANGES: Final[Mapping[str, Range]] = {  # as OpenAI and vLLM have them
    "temperature": Range(0, 2),
    "top_p": Range(0, 1, above_low=True),
    "top_k": Range(-1, 2**31 - 1, whole=True),  # -1 and 0: off
    "min_p": Range(0, 1),
    "presence_penalty": Range(-2, 2),
    "frequency_penalty": Range(-2, 2),
    "repetition_penalty": Range(0.01, 10),  # a logit divided by less may be no number any more
    "seed": Range(0, 2**64 - 1, whole=True),
    "choice": Range(0, 127, whole=True),
}
LOGPROBS: Final = Range(0, 20, whole=True)  # also of top_logprobs

BIAS: Final = Range(-100, 100)
BIASES_MAX: Final = 1024
TOKEN_ID: Final = re.compile(r"[0-9]{1,9}")


def sampling_params(
    values: Mapping[str, Any], *, request_id: str, room: int, why_room: str, vocab_size: int
) -> SamplingParams:
    """The sampling parameters of a request; an absent max_tokens means all of the room.

    room      output tokens that can follow the prompt, >= 1
    why_room  where the room comes from, for the sentence of a refusal
    vocab_size  of the model: ids in logit_bias lie below it
    """
    numbers = {name: number(values, name) for name in RANGES if name in values}
    numbers.setdefault("seed", xxhash.xxh3_64_intdigest(request_id.encode()))
    if "top_k" in numbers:
        numbers["top_k"] = max(0, numbers["top_k"])
    return SamplingParams(
        max_tokens=max_tokens(values, room, why_room),
        stop=stop_strings(values.get("stop", [])),
        logprobs=num_logprobs(values),
        logit_bias=logit_bias(values.get("logit_bias", {}), vocab_size),
        **numbers,
    )


def number(values: Mapping[str, Any], name: str, allowed: Range | None = None) -> Any:
    """The number under this name, as int or float as its range wants it."""
    value, allowed = values[name], allowed or RANGES[name]
    if not allowed.holds(value):
        raise Refused(name, f"must be {allowed}, got {shown(value)}")
    return value if allowed.whole else float(value)


def max_tokens(values: Mapping[str, Any], room: int, why_room: str) -> int:
    """Output tokens at most. max_completion_tokens is the chat API's newer name of the same."""
    names = [name for name in ("max_tokens", "max_completion_tokens") if name in values]
    if len(names) == 2 and values[names[0]] != values[names[1]]:
        raise Refused("max_tokens", "must not differ from max_completion_tokens; give one of them")
    if not names:
        return room
    value = values[names[0]]
    if not Range(1, room, whole=True).holds(value):
        allowed = f"must be an integer from 1 to {room} ({why_room}), got {shown(value)}"
        raise Refused(names[0], allowed)
    return int(value)


def num_logprobs(values: Mapping[str, Any]) -> int | None:
    """How many alternatives are reported beside the chosen token; None: nothing is reported.

    logprobs is a number (completions API), or true and top_logprobs has the number (chat API).
    """
    asked = values.get("logprobs", False)
    top = number(values, "top_logprobs", LOGPROBS) if "top_logprobs" in values else 0
    if not isinstance(asked, bool):
        return int(number(values, "logprobs", LOGPROBS))
    if top and not asked:
        raise Refused("top_logprobs", "needs logprobs to be true")
    return int(top) if asked else None


def stop_strings(value: Any) -> tuple[str, ...]:
    """Where the output ends: one string or a list of them, without repetitions."""
    listed = value if isinstance(value, list | tuple) else [value]
    if len(listed) > STOP_MAX:
        raise Refused("stop", f"must hold at most {STOP_MAX} strings, got {len(listed)}")
    for index, item in enumerate(listed):
        field = f"stop[{index}]" if listed is value else "stop"
        if not isinstance(item, str):
            raise Refused(field, f"must be a string or a list of strings, got {shown(item)}")
        if not 1 <= len(text_of(field, item)) <= STOP_CHARS_MAX:
            raise Refused(field, f"must have 1 to {STOP_CHARS_MAX} characters, got {len(item)}")
    return tuple(dict.fromkeys(listed))


def logit_bias(value: Any, vocab_size: int) -> tuple[tuple[int, float], ...]:
    """What is added to which logits; JSON has the token ids as texts."""
    if not isinstance(value, Mapping) or len(value) > BIASES_MAX:
        allowed = f"must be a map of at most {BIASES_MAX} token ids"
        raise Refused("logit_bias", f"{allowed}, got {shown(value)}")
    found: dict[int, float] = {}
    for key, bias in value.items():
        digits = key if isinstance(key, str) else str(key)
        if not TOKEN_ID.fullmatch(digits) or int(digits) >= vocab_size:
            allowed = f"must have token ids from 0 to {vocab_size - 1}"
            raise Refused("logit_bias", f"{allowed}, got {shown(key)}")
        if not BIAS.holds(bias):
            raise Refused(f"logit_bias.{digits}", f"must be {BIAS}, got {shown(bias)}")
        found[int(digits)] = float(bias)
    return tuple(sorted(found.items()))
