"""The classes of service: what each promises, how urgent it is, how much of it may wait.

Three exist always: realtime, standard, batch. lockstep.toml changes them and adds others by name:

    [sla.realtime]
    ttft_ms = 1500

    [sla.nightly]            # whatever is not said is as in `like`
    like = "batch"
    deadline_ms = 28_800_000

A class promises a time to the first token and per token (ttft_ms, tpot_ms), or a time to the end
(deadline_ms), to `attainment` of its requests. Urgency is said in one way: in a queue a request
counts as if it had arrived handicap_ms later than it did. So 0 is the most urgent, and nobody waits
for ever. The handicaps are longer than what the class promises: it is passed over only by those
more urgent until its promise is broken, and long after that by nobody.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, Self

import msgspec

NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,31}")
LIKE: Final = "like"
CLASSES_MAX: Final = 16
LONGEST_MS: Final = 30 * 86_400_000


class BadClass(ValueError):
    """The settings of a class are none: one sentence that names the class and the key."""


class SlaClass(msgspec.Struct, frozen=True, kw_only=True):
    """One class.

    weight       share of what is placed while all classes have something waiting, 1 to 1000
    handicap_ms  a request counts as if it had arrived so much later, >= 0; 0: the most urgent
    ttft_ms      promised ms from arrival to the first token; None: nothing is promised
    tpot_ms      promised mean ms per output token after the first; None: nothing is promised
    deadline_ms  promised ms from arrival to the end; None: nothing is promised
    attainment   the share of requests to which the promises are to be kept, above 0 to 1
    max_queue    requests that may wait before the door refuses; None: the setting max_queue
    """

    name: str
    weight: int = 1
    handicap_ms: int = 0
    ttft_ms: int | None = None
    tpot_ms: int | None = None
    deadline_ms: int | None = None
    attainment: float = 0.95
    max_queue: int | None = None

    def rank_ms(self, arrival_ms: int, deadline_ms: int | None = None) -> int:
        """Who is first in a queue: the smallest.

        deadline_ms  the request's own, Unix time: one that is nearer than what the class promises
                     counts as an earlier arrival
        """
        if deadline_ms is not None:
            promised_ms = self.deadline_ms or self.ttft_ms or 0
            arrival_ms = min(arrival_ms, deadline_ms - promised_ms)
        return arrival_ms + self.handicap_ms


REALTIME: Final = SlaClass(
    name="realtime", weight=8, handicap_ms=0, ttft_ms=2_000, tpot_ms=100, attainment=0.99
)
STANDARD: Final = SlaClass(
    name="standard", weight=3, handicap_ms=300_000, ttft_ms=30_000, tpot_ms=600
)
BATCH: Final = SlaClass(name="batch", weight=1, handicap_ms=7_200_000, deadline_ms=3_600_000)
DEFAULTS: Final = (REALTIME, STANDARD, BATCH)


class SlaTable:
    """All classes of the node, most urgent first. Immutable."""

    def __init__(self, classes: tuple[SlaClass, ...] = DEFAULTS) -> None:
        ordered = sorted(classes, key=lambda c: (c.handicap_ms, -c.weight, c.name))
        self._by_name = {sla.name: sla for sla in ordered}
        self.names: tuple[str, ...] = tuple(self._by_name)
        self.urgency = {name: index for index, name in enumerate(self.names)}  # 0: most urgent

    @classmethod
    def of(cls, given: Mapping[str, Mapping[str, Any]]) -> Self:
        """The defaults with what the settings say. Raises BadClass."""
        classes = {sla.name: sla for sla in DEFAULTS}
        for name, values in given.items():
            classes[name] = class_of(name, values, classes)
        if len(classes) > CLASSES_MAX:
            raise BadClass(f"at most {CLASSES_MAX} classes, got {len(classes)}")
        return cls(tuple(classes.values()))

    def __iter__(self) -> Iterator[SlaClass]:
        return iter(self._by_name.values())

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def __getitem__(self, name: str) -> SlaClass:
        """The class of this name. One that another node knows and this one does not: the last."""
        return self._by_name.get(name) or self._by_name[self.names[-1]]

    def more_urgent(self, name: str, other: str) -> bool:
        """Whether class `name` goes before class `other`."""
        return self.urgency[self[name].name] < self.urgency[self[other].name]


def class_of(name: str, values: Any, known: Mapping[str, SlaClass]) -> SlaClass:
    """One table of lockstep.toml. Raises BadClass."""
    if not NAME.fullmatch(name):
        raise BadClass(f"{name}: a class is named by a-z, 0-9 and _, a letter first")
    if not isinstance(values, Mapping):
        raise BadClass(f"{name}: must be a table, [sla.{name}]")
    like = values.get(LIKE, name if name in known else STANDARD.name)
    if not isinstance(like, str) or like not in known:
        raise BadClass(f"{name}.{LIKE}: must be one of {', '.join(known)}, got {like!r}")
    fields = {**msgspec.structs.asdict(known[like]), "name": name}
    for key, value in values.items():
        if key != LIKE:
            fields[key] = checked(f"{name}.{key}", key, value)
    return SlaClass(**fields)


WHOLE: Final[Mapping[str, tuple[int, int]]] = {
    "weight": (1, 1000),
    "handicap_ms": (0, LONGEST_MS),
    "ttft_ms": (1, LONGEST_MS),
    "tpot_ms": (1, LONGEST_MS),
    "deadline_ms": (1, LONGEST_MS),
    "max_queue": (1, 1_000_000_000),
}
OFF: Final = ("ttft_ms", "tpot_ms", "deadline_ms")  # 0 takes a promise back


def checked(where: str, key: str, value: Any) -> int | float | None:
    """One value of a class. Raises BadClass."""
    if key == "attainment":
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
            raise BadClass(f"{where}: must be a number above 0 and at most 1, got {value!r}")
        return float(value)
    if key not in WHOLE:
        known = ", ".join((*WHOLE, "attainment", LIKE))
        raise BadClass(f"{where}: there is no such key; known are {known}")
    low, high = WHOLE[key]
    off = ", or 0 for no promise" if key in OFF else ""
    if off and value == 0 and type(value) is int:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise BadClass(f"{where}: must be an integer from {low} to {high}{off}, got {value!r}")
    return value
