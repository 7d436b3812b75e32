"""Time to first token of a session that goes on: from RAM, page cache and disk, and computed."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from ingest.command.bench.cases import STEP_TOKENS
from ingest.command.bench.kv.plan import (
    GOAL_BYTES_PER_S,
    GOAL_MS,
    TENANT,
    Plan,
    Progress,
    Row,
    is_computed,
    rounded,
    row,
)
from ingest.command.bench.kv.seat import NEW_TOKENS, First, Seat, read_from_disk
from kernels.ops import BLOCK_TOKENS


@dataclass(frozen=True)
class Talk:
    """A session in files. num_kv of its tokens have KV."""

    seat: Seat
    ids: Sequence[int]
    num_kv: int
    computed: bool
    num_bytes: int

    def turn(self, number: int) -> list[int]:
        """The log and a new message, another each time."""
        return [*self.ids, *self.seat.token_ids(NEW_TOKENS, 100 + number)]


def resume_rows(
    plan: Plan, name: str, seat: Seat, num_tokens: int, progress: Progress
) -> list[Row]:
    progress(f"KV of {num_tokens} tokens", 0, 0)
    talk = written(seat, num_tokens, is_computed(name, num_tokens))
    found: dict[str, list[First]] = {"ram": [], "page cache": [], "disk": []}
    read: list[int] = []
    for number in range(plan.rounds):
        progress(f"resume {num_tokens}", number, plan.rounds)
        read.append(one_round(talk, number, found))
    short = [one for firsts in found.values() for one in firsts if one.cached < talk.num_kv]
    assert not short, (talk.num_kv, short)
    recompute_s = (recomputed if talk.computed else estimated)(plan, talk, progress)
    in_ram_s = median(one.seconds - one.fetch_s for one in found["ram"])
    rows = [tier_row(talk, tier, firsts, in_ram_s, recompute_s) for tier, firsts in found.items()]
    rows[-1]["read_bytes"] = int(median(read))
    return rows


def written(seat: Seat, num_tokens: int, computed: bool) -> Talk:
    """A session of so many tokens, less those of a turn to come."""
    ids = seat.token_ids(num_tokens - NEW_TOKENS - 1)
    if computed:
        ids, num_kv = seat.computed(ids, TENANT)
    else:
        num_kv = len(ids) // BLOCK_TOKENS * BLOCK_TOKENS
        ids = ids[:num_kv]  # so that only what is new is computed
        seat.tier.put(TENANT, seat.made_up(ids, TENANT))
    num_bytes = sum(path.stat().st_size for path in seat.files())
    return Talk(seat, ids, num_kv, computed, num_bytes)


def one_round(talk: Talk, number: int, found: dict[str, list[First]]) -> int:
    """One turn from each tier, by engines that know nothing; bytes that were read from the disk."""
    seat = talk.seat
    seat.cool()
    before = read_from_disk()
    found["disk"].append(
        seat.first_token(seat.engine(), talk.turn(3 * number), TENANT, talk.num_kv)
    )
    read = read_from_disk() - before
    seat.warm()
    engine = seat.engine()
    for place, tier in enumerate(("page cache", "ram"), 1):
        ids = talk.turn(3 * number + place)
        found[tier].append(seat.first_token(engine, ids, TENANT, talk.num_kv))
    return read


def tier_row(
    talk: Talk, tier: str, firsts: Sequence[First], in_ram_s: float, recompute_s: float
) -> Row:
    """in_ram_s: of the first step, with all KV in RAM."""
    ttft_s = median(one.seconds for one in firsts)
    step_s = median(one.seconds - one.fetch_s for one in firsts)
    ours_s = median(one.fetch_s for one in firsts) + max(0.0, step_s - in_ram_s)
    goal = None
    if tier == "page cache":
        goal = rounded(GOAL_MS + talk.num_bytes / GOAL_BYTES_PER_S * 1e3)
    return row(
        "resume",
        "ms",
        ours_s * 1e3,
        goal,
        tier=tier,
        kv="computed" if talk.computed else "made up",
        bytes=talk.num_bytes,
        prompt_tokens=len(talk.ids) + NEW_TOKENS,
        recompute="measured" if talk.computed else "estimated from chunks at 0, 1/2 and the end",
        ttft_ms=rounded(ttft_s * 1e3),
        recompute_ms=rounded(recompute_s * 1e3),
        times_faster=rounded(recompute_s / ttft_s),
    )


def recomputed(plan: Plan, talk: Talk, progress: Progress) -> float:
    """Seconds to the first token of the same turn, with no KV at all."""
    times = []
    for number in range(plan.rounds):
        progress(f"computing {len(talk.ids)}", number, plan.rounds)
        engine = talk.seat.engine()
        times.append(talk.seat.first_token(engine, talk.turn(number), TENANT, 0).seconds)
    return median(times)


def estimated(plan: Plan, talk: Talk, progress: Progress) -> float:
    """The same, of chunks at the beginning, in the middle and at the end (Simpson's rule)."""
    seat, engine = talk.seat, talk.seat.engine()
    seat.first_token(engine, talk.turn(0), TENANT, talk.num_kv)  # all of it is in RAM now
    times = []
    last = talk.num_kv - STEP_TOKENS
    for number, begin in enumerate((0, last // 2 // BLOCK_TOKENS * BLOCK_TOKENS, last)):
        progress("a chunk", number, 3)
        chunk = [*talk.ids[:begin], *seat.token_ids(STEP_TOKENS, 50 + number)]
        first = seat.first_token(engine, chunk, TENANT, begin)
        times.append(first.seconds - first.fetch_s)
    num_chunks = len(talk.ids) / STEP_TOKENS
    return num_chunks * (times[0] + 4 * times[1] + times[2]) / 6
