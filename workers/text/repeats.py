"""How large a grammar becomes when its counted repetitions are written out.

The compiler of grammars writes (a{100}){100} out as 10,000 times a, whatever its limits: four such
levels in forty characters would take all memory. So a bound from above is computed first, without
parsing: what stands behind a group may repeat every other repetition of the same text.
"""

import re
from math import prod
from typing import Final

QUOTED: Final = re.compile(r'"(?:[^"\\]|\\.)*"|/(?:[^/\\\n]|\\.)*/', re.DOTALL)
ESCAPED: Final = re.compile(r"\\+u([0-9a-fA-F]{4})")
COUNTED: Final = re.compile(r"(?<=(.))\{\s*(\d*)\s*,?\s*(\d*)\s*\}", re.DOTALL)
REPEATED: Final = ")}?*+"  # behind these a count may repeat more than one character
DIGITS_MAX: Final = 9  # of a count; a longer one counts as so many nines


def written_out(grammar: str) -> int:
    """Characters at most, over all regular expressions and rules of a grammar."""
    rules = QUOTED.sub('""', grammar)
    return sum(size_of(text) for text in (rules, *QUOTED.findall(grammar)))


def size_of(text: str) -> int:
    """Of one expression, or of all rules."""
    plain = ESCAPED.sub(lambda found: chr(int(found[1], 16)), text)
    counts = [(before, count_of(least, most)) for before, least, most in COUNTED.findall(plain)]
    groups = prod(count for before, count in counts if before in REPEATED)
    return groups * (len(plain) + sum(count for before, count in counts if before not in REPEATED))


def count_of(least: str, most: str) -> int:
    """The larger number of {m}, {m,}, {,n} or {m,n}; at least 1."""
    return max(1, *(int(number[:DIGITS_MAX] or 0) for number in (least, most)))
