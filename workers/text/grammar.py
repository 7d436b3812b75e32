"""What an answer must look like: from response_format and tools to one grammar, a text.

    {"type": "json_schema", ...}  JSON of that schema          tool_choice required, or a name:
    {"type": "json_object"}       any JSON object              calls, and nothing else
    thoughts, if the model writes them, come before            tool_choice auto: text, and calls
                                                               whose name and arguments are right

The grammar travels with the request; a pool makes masks of it (mask.py). Compiling is bounded in
time and size by LIMITS, and tried out at admission. Source: llguidance, docs/syntax.md.
"""

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from workers.text.deep_stack import on_deep_stack
from workers.text.repeats import written_out
from workers.text.tool_calls.forms import Schema, Tool, calls_grammar, json_rule

HEAD: Final = "%llguidance {}\n"
GRAMMAR_BYTES_MAX: Final = 1 << 16
# The compiler follows chains of rules and references by recursion, and a process whose stack ends
# dies: on_deep_stack holds several times as many. Each needs a line, or an object.
LEVELS_MAX: Final = 900
WRITTEN_OUT_MAX: Final = 200_000  # characters: some 0.2 s and 60 MiB of the compiler
LIMITS: Final = LLParserLimits(
    max_items_in_row=4000,
    initial_lexer_fuel=400_000,
    step_lexer_fuel=100_000,
    step_max_items=30_000,
    max_lexer_states=20_000,
    max_grammar_size=8_000,
    precompute_large_lexemes=False,
    verbose_errors=False,
)
THOUGHTS: Final = {  # by who writes the mark before them; "": the model has none
    "": "",
    "template": "thoughts[lazy]: /(.|\\n)*<\\/think>/\nspace: /[ \\n]{0,4}/\n",
    "model": "thoughts[lazy]: /<think>(.|\\n)*<\\/think>/\nspace: /[ \\n]{0,4}/\n",
}
FIRST: Final = {"": "", "template": "thoughts space ", "model": "(thoughts space)? "}


class BadGrammar(ValueError):
    """It cannot be enforced; the message says why, in one sentence."""


@dataclass(frozen=True)
class Wanted:
    """What is asked of an answer.

    form, tools  how the model writes calls, and what it may call
    calls        "none", "auto" or "required"
    most         calls at most; None: any number
    schema       of the JSON that an answer in text must be; None: any text will do
    lenient      keywords of the schema that cannot be enforced are ignored
    thoughts     who writes the mark before them (TextModel.thoughts)
    """

    form: str
    tools: tuple[Tool, ...] = ()
    calls: str = "none"
    most: int | None = None
    schema: Schema | None = None
    lenient: bool = False
    thoughts: str = ""

    def of_one(self, tool: Tool) -> "Wanted":
        """The same with one tool alone: to find the one that is at fault."""
        return replace(self, tools=(tool,), calls="required", schema=None)


def grammar_of(wanted: Wanted) -> str:
    """The grammar of an answer; "": any text will do."""
    may_call = wanted.calls != "none"
    any_text = wanted.calls == "auto" and wanted.schema is None
    if not may_call and wanted.schema is None:
        return ""
    if any_text and wanted.form == "llama":
        return ""  # its calls have no mark of their own: a text may begin like one
    thoughts = "" if any_text else wanted.thoughts  # there they are text, too
    parts, rules = [], []
    if may_call:
        parts.append("calls")
        rules.append(calls_grammar(wanted.form, wanted.tools, most=wanted.most, any_text=any_text))
    if wanted.schema is not None and wanted.calls != "required":
        parts.append("answer")
        rules.append(f"answer: {json_rule(wanted.schema, wanted.lenient)}")
    start = f"start: {FIRST[thoughts]}({' | '.join(parts)})"
    return "\n".join([HEAD + THOUGHTS[thoughts] + start, *rules, ""])


@lru_cache(256)
def check(grammar: str) -> None:
    """Compiles it, with a byte for each token. Raises BadGrammar."""
    size = len(grammar.encode())
    if size > GRAMMAR_BYTES_MAX:
        raise BadGrammar(f"makes a grammar of {size} bytes; at most {GRAMMAR_BYTES_MAX} are taken")
    for mark, what in (("\n", "lines"), ("{", "objects")):
        count = grammar.count(mark)
        if count > LEVELS_MAX:
            raise BadGrammar(f"makes a grammar of {count} {what}; at most {LEVELS_MAX} are taken")
    written = written_out(grammar)
    if written > WRITTEN_OUT_MAX:
        raise BadGrammar(
            f"has repetitions that may come to {written} characters when they are written out; "
            f"at most {WRITTEN_OUT_MAX} are taken"
        )
    matcher = compiled(_bytes(), grammar)
    matcher.compute_bitmask()  # some are found out by the first step only
    if matcher.is_error() or not any(matcher.compute_bitmask()):
        raise BadGrammar(f"cannot be enforced: {sentence(matcher.get_error())}")


def compiled(tokenizer: LLTokenizer, grammar: str) -> LLMatcher:
    """At the grammar's beginning; is_error() says whether it could be compiled. From any thread."""
    return on_deep_stack(lambda: LLMatcher(tokenizer, grammar, log_level=0, limits=LIMITS))


@lru_cache(1)
def _bytes() -> LLTokenizer:
    """A vocabulary of the 256 bytes and an end."""
    return LLTokenizer("byte")


def sentence(said: str) -> str:
    """What the compiler says, in one line of bounded length."""
    words = " ".join(said.replace("<non-verbose/>", "").split())
    words = words.rpartition("failed to compile JSON schema: ")[2].partition(" 1 | %")[0]
    return {"": "nothing satisfies it", "NoExtensionBias": "nothing satisfies it"}.get(
        words, words[:200]
    )
