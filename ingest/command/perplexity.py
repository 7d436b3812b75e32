"""Perplexity of a text, in llama.cpp's way, so that numbers can be laid side by side.

The text's tokens are cut into windows of 512. In each, the second half but for its first token is
scored: each token by the probability that the model gave it. A text shorter than a window is one
window, and all but its first token are scored. perplexity = exp(mean of -log p).
"""

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from ingest.command.failure import Failure
from kernels.ops import F32
from workers.text.text_model import TextModel

WINDOW: Final = 512


@dataclass(frozen=True, slots=True)
class Window:
    """ids are fed; the tokens at [first_scored, len(ids)) are scored."""

    ids: tuple[int, ...]
    first_scored: int


def windows_of(ids: list[int], text: TextModel) -> list[Window]:
    """Whole windows of a text, each beginning with the bos token where the model wants one."""
    size = min(WINDOW, text.context_length - 1)
    bos = text.encode("")
    if len(ids) < size:
        return [Window(tuple(ids), 1)] if len(ids) > 1 else []
    starts = range(0, len(ids) - size + 1, size)
    cut = [(*bos, *ids[start + len(bos) : start + size]) for start in starts]
    return [Window(window, size // 2 + 1) for window in cut]


class Perplexity:
    """Takes logits of windows; request ids are the windows' indices."""

    def __init__(self, windows: list[Window]) -> None:
        self._windows = windows
        self._losses: list[float] = []

    def take(self, request_id: str, position: int, rows: F32) -> None:
        """Score the tokens that follow these rows."""
        window = self._windows[int(request_id)]
        for offset, row in enumerate(rows.astype(np.float64)):
            place = position + offset + 1
            if window.first_scored <= place < len(window.ids):
                largest = row.max()
                total = largest + math.log(np.exp(row - largest).sum())
                self._losses.append(float(total - row[window.ids[place]]))

    def result(self) -> dict[str, Any]:
        """perplexity, its standard error, and what it was measured on. Raises Failure."""
        losses = np.array(self._losses)
        if not np.isfinite(losses).all():
            raise Failure("the model gave logits that are not finite numbers")
        mean = float(losses.mean())
        error = float(losses.std(ddof=1) / math.sqrt(len(losses))) if len(losses) > 1 else 0.0
        return {
            "perplexity": round(math.exp(mean), 4),
            "standard_error": round(math.exp(mean) * error, 4),
            "tokens_scored": len(losses),
            "windows": len(self._windows),
        }
