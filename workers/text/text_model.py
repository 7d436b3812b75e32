"""The text side of a model: text to token ids, messages to token ids, token ids to bytes.

Reads card.json and tokenizer.json of a model's folder and nothing else, so that the front door and
the router can count tokens without touching the weights. vocabulary.py makes what both files hold.
"""

import json
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from tokenizers import Tokenizer

from workers.text.control import any_of, break_control, cut, unused_mark
from workers.text.template import USER, ChatTemplate, TemplateError
from workers.text.tool_calls import generic
from workers.text.tool_calls.forms import form_of

CARD: Final = "card.json"
TOKENIZER: Final = "tokenizer.json"
BYTE_TOKEN: Final = re.compile(r"<0x([0-9A-F]{2})>")


def printable_bytes() -> dict[str, int]:
    """GPT-2's alphabet, backwards: printable character -> the byte it stands for."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(b): b for b in plain} | {chr(256 + i): b for i, b in enumerate(others)}


ALPHABET: Final = printable_bytes()


class TextModel:
    """Made by load(); nothing of it changes afterwards.

    end_ids         ids that end a generation
    hidden_ids      ids of padding rows, which must never be sampled
    weights_digest  hex, of the weights' content whatever their layout
    """

    def __init__(self, name: str, card: Mapping[str, Any], tokenizer: Tokenizer) -> None:
        self.name = name
        self.context_length: int = card["context_length"]
        self.vocab_size: int = card["vocab_size"]
        self.weights_digest: str = card["weights_digest"]
        text: Mapping[str, Any] = card["text"]
        self.end_ids = frozenset[int](text["end_ids"])
        self.hidden_ids = frozenset[int](text["hidden_ids"])
        self._text = text
        self._tokenizer = tokenizer
        self._control: dict[str, int] = text["control"]
        self._user_defined: dict[str, int] = text["user_defined"]
        self._thoughts: dict[str, str] = {}  # of the variables that were asked for last
        self._printed = dict.fromkeys(self._control.values(), b"")
        self._printed |= {
            token_id: written.encode() for written, token_id in self._user_defined.items()
        }

    @classmethod
    def load(cls, folder: Path) -> "TextModel":
        """The text side of the model in folder; the folder's name is the model's."""
        card = json.loads((folder / CARD).read_text("utf-8"))
        return cls(folder.name, card, Tokenizer.from_file(str(folder / TOKENIZER)))

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        """Token ids of a prompt, beginning with the bos token where the model wants one.

        special  control tokens written out in text are parsed; never for what a client wrote

        Raises UnicodeEncodeError when text holds an unpaired surrogate.
        """
        text.encode()
        return self._with_bos(self._encode(text, self._control_pattern if special else None))

    def render(self, messages: Sequence[Mapping[str, Any]], **variables: Any) -> list[int]:
        """Token ids of a conversation, up to where the assistant's answer begins.

        variables  further names that the template may know, such as enable_thinking; what a client
                   wrote in them stays text, too. `tools` are told by any template

        Raises TemplateError.
        """
        rendered, mark = self._rendered(messages, variables)
        return self._with_bos(self._encode(rendered, self._control_pattern, mark))

    def render_after(
        self, messages: Sequence[Mapping[str, Any]], position: int, **variables: Any
    ) -> list[int] | None:
        """Token ids of what follows one message, its content and its calls, up to where the
        answer begins.

        None: the template does not write this content, or more than once. Raises TemplateError.
        """
        hole = unused_mark([*messages, variables])
        holed = [*messages]
        holed[position] = {"role": messages[position]["role"], "content": hole}
        rendered, mark = self._rendered(holed, variables)
        if rendered.count(hole) != 1:
            return None
        return self._encode(rendered.partition(hole)[2], self._control_pattern, mark)

    def num_shown(
        self, messages: Sequence[Mapping[str, Any]], positions: Sequence[int], **variables: Any
    ) -> int:
        """How many of the messages at these ascending positions are written out whole, in a row.

        Templates leave thoughts of earlier answers out; space around a text does not count.
        Raises TemplateError.
        """
        rendered, mark = self._rendered(messages, variables)
        end = 0
        for count, position in enumerate(positions):
            content = break_control(messages[position]["content"], self._control_pattern, mark)
            begin = rendered.find(content.strip(), end)
            if begin < 0:
                return count
            end = begin + len(content.strip())
        return len(positions)

    def _rendered(
        self, messages: Sequence[Mapping[str, Any]], variables: Mapping[str, Any]
    ) -> tuple[str, str]:
        """The text of a conversation, and the mark in it that breaks control texts of messages."""
        if self._template is None:
            raise TemplateError(
                f"model {self.name} has no chat template: send a prompt instead of messages"
            )
        mark = unused_mark([*messages, variables])
        told: Sequence[Mapping[str, Any]] = [_flattened(message) for message in messages]
        if not self._template.knows("tools"):
            told = generic.told(told, variables.get("tools", ()))
        marked = [break_control(message, self._control_pattern, mark) for message in told]
        known = {"add_generation_prompt": True, "bos_token": self._bos, "eos_token": self._eos}
        further = break_control(variables, self._control_pattern, mark)
        rendered = self._template.render(marked, {**known, **further})
        try:
            rendered.encode()
        except UnicodeEncodeError as error:
            raise TemplateError("the messages hold an unpaired surrogate") from error
        return rendered, mark

    def thoughts(self, variables: Mapping[str, Any]) -> str:
        """Who writes the mark before the thoughts of an answer: "template", "model"; "": nobody.

        variables  as for render
        """
        if self._template is None or "</think>" not in self._text["template"]:
            return ""
        key = json.dumps(variables, sort_keys=True)
        if key not in self._thoughts:
            rendered, _ = self._rendered([USER], variables)
            self._thoughts.clear()
            is_begun = rendered.rstrip().endswith("<think>")
            is_ended = rendered.rstrip().endswith("</think>")
            self._thoughts[key] = "template" if is_begun else "" if is_ended else "model"
        return self._thoughts[key]

    def knows_variable(self, name: str) -> bool:
        """Whether the chat template asks for a variable of this name."""
        return self._template is not None and self._template.knows(name)

    @cached_property
    def tool_form(self) -> str:
        """How the model writes calls of tools (tool_calls/forms.py)."""
        return form_of(self._text["template"])

    def encode_inside(self, text: str) -> list[int]:
        """Token ids of plain text that stands in the middle of another."""
        return self._encode_plain(text, space_prefix=False)

    def without_bos(self, token_ids: list[int]) -> list[int]:
        """Token ids that come after others: without the bos token that encoding has put first."""
        is_there = self._text["add_bos"] and token_ids[:1] == [self._text["bos_id"]]
        return token_ids[1:] if is_there else token_ids

    def token_bytes(self, token_id: int) -> bytes:
        """What the token prints; a control token or a padding id prints nothing."""
        printed = self._printed.get(token_id)
        if printed is not None:
            return printed
        text = self._tokenizer.id_to_token(token_id)
        if text is None or text.startswith("\0"):
            return b""
        return _byte_level(text) if self._text["byte_level"] else _sentencepiece(text)

    @cached_property
    def _template(self) -> ChatTemplate | None:
        source = self._text["template"]
        return None if source is None else ChatTemplate(source)

    @cached_property
    def _control_pattern(self) -> re.Pattern[str] | None:
        return any_of(self._control)

    @cached_property
    def _user_pattern(self) -> re.Pattern[str] | None:
        return any_of(self._user_defined)

    @cached_property
    def _bos(self) -> str:
        return self._special_text(self._text["bos_id"])

    @cached_property
    def _eos(self) -> str:
        return self._special_text(self._text["eos_id"])

    def _special_text(self, token_id: int | None) -> str:
        texts = (self._control | self._user_defined).items()
        return next((text for text, known in texts if known == token_id), "")

    def _with_bos(self, token_ids: list[int]) -> list[int]:
        bos_id = self._text["bos_id"]
        if not self._text["add_bos"] or token_ids[:1] == [bos_id]:
            return token_ids
        return [bos_id, *token_ids]

    def _encode(self, text: str, control: re.Pattern[str] | None, mark: str = "") -> list[int]:
        """Cut at control tokens, take the mark out, and encode what lies between as plain text."""
        token_ids: list[int] = []
        for piece, is_control in cut(control, text):
            if is_control:
                token_ids.append(self._control[piece])
            else:
                token_ids += self._encode_plain(piece.replace(mark, "") if mark else piece)
        return token_ids

    def _encode_plain(self, text: str, space_prefix: bool = True) -> list[int]:
        """User-defined tokens are always cut out; all else goes through the tokenizer."""
        adds_space = space_prefix and self._text["space_prefix"]
        token_ids: list[int] = []
        for part, is_user_defined in cut(self._user_pattern, text):
            if is_user_defined:
                token_ids.append(self._user_defined[part])
            else:
                spaced = " " + part if adds_space else part
                token_ids += self._tokenizer.encode(spaced, add_special_tokens=False).ids
        return token_ids


def _flattened(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """OpenAI's list of text parts becomes the one text that templates expect."""
    content = message.get("content")
    if not isinstance(content, list) or not all(isinstance(part, Mapping) for part in content):
        return message
    if any(part.get("type") != "text" for part in content):
        return message
    return {**message, "content": "".join(str(part.get("text", "")) for part in content)}


def _byte_level(text: str) -> bytes:
    return bytes(ALPHABET[char] for char in text if char in ALPHABET)


def _sentencepiece(text: str) -> bytes:
    byte = BYTE_TOKEN.fullmatch(text)
    return bytes([int(byte[1], 16)]) if byte else text.replace("▁", " ").encode()
