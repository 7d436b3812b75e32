"""A node's hardware as the simulator needs it: what steps cost, and how much memory there is.

Descriptions lie in hardware/*.toml, with their sources; a path to one of the same form may be
given, and the calibration of this machine makes one, too (ingest/command/plan.py).
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from workers.cost import CostModel

FOLDER: Final = Path(__file__).parent / "hardware"
BLOCK_TOKENS: Final = 256
GIB: Final = 1 << 30
SLOTS_OF_ONE: Final = 2  # of a sequence: its state, and a checkpoint (workers/engine/limits.py)
NODE_KEYS: Final = (
    "context",
    "block_bytes",
    "state_bytes",
    "weight_bytes",
    "read_bytes_per_s",
    "write_bytes_per_s",
)
COSTS: Final = ("fixed_ms", "decode_ms", "prefill_ms", "context_us", "prefill_context_us")


class BadHardware(ValueError):
    """The description is none: one sentence that names the file and the key."""


@dataclass(frozen=True, slots=True)
class PoolHardware:
    """One processor with the model.

    num_blocks    KV blocks of 256 tokens
    block_bytes   of one of them
    weight_bytes  of the model, beside them in the pool's memory
    state_slots   for recurrent state, two for a sequence; 0: the model has none
    """

    cost: CostModel
    num_blocks: int
    block_bytes: int
    weight_bytes: int
    state_slots: int
    max_batch: int
    max_step_tokens: int

    @property
    def tokens(self) -> int:
        """The longest sequence that it can hold."""
        return self.num_blocks * BLOCK_TOKENS


@dataclass(frozen=True, slots=True)
class Hardware:
    """A node: pools by name ("gpu", "cpu"), and the longest sequence of its model."""

    says: str
    model: str
    context: int
    pools: Mapping[str, PoolHardware]


def names() -> list[str]:
    """The descriptions that come with us."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def load(name: str) -> Hardware:
    """By name, or by path. Raises BadHardware."""
    path = FOLDER / f"{name}.toml" if name in names() else Path(name)
    try:
        values = tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        known = ", ".join(names())
        raise BadHardware(f"{name}: cannot be read ({error}); there are {known}") from None
    except tomllib.TOMLDecodeError as error:
        raise BadHardware(f"{name}: is no TOML: {error}") from None
    return hardware_of(name, values)


def hardware_of(name: str, values: Mapping[str, Any]) -> Hardware:
    """Of a parsed description. Raises BadHardware."""
    node = {key: number(name, values, key) for key in NODE_KEYS}
    pools = {
        pool: pool_of(f"{name}, [{pool}]", values[pool], node)
        for pool in ("gpu", "cpu")
        if pool in values
    }
    if not pools:
        raise BadHardware(f"{name}: has neither [gpu] nor [cpu]")
    says, model = values.get("says", name), values.get("model", "")
    return Hardware(str(says), str(model), int(node["context"]), pools)


def pool_of(where: str, values: Any, node: Mapping[str, float]) -> PoolHardware:
    """State slots come out of the memory, as in workers/engine/limits.py: at most half of it."""
    if not isinstance(values, Mapping):
        raise BadHardware(f"{where}: must be a table")
    costs = {key: number(where, values, key) for key in COSTS}
    budget, max_batch = (
        number(where, values, "kv_gib") * GIB,
        int(number(where, values, "max_batch")),
    )
    state_bytes, block_bytes = node["state_bytes"], node["block_bytes"]
    slots = 0
    if state_bytes:
        slots = max(1, min(SLOTS_OF_ONE * max_batch, int(budget / 2 / state_bytes)))
    num_blocks = int((budget - slots * state_bytes) / block_bytes)
    if max_batch < 1 or num_blocks < 1:
        raise BadHardware(f"{where}: kv_gib and max_batch must leave room for one block, at least")
    cost = CostModel(
        fixed_ms=costs["fixed_ms"],
        decode_ms=costs["decode_ms"],
        prefill_ms=costs["prefill_ms"],
        context_us=costs["context_us"],
        prefill_context_us=costs["prefill_context_us"],
        kv_bytes_per_token=int(block_bytes) // BLOCK_TOKENS,
        state_bytes=int(state_bytes),
        read_bytes_per_s=node["read_bytes_per_s"],
        write_bytes_per_s=node["write_bytes_per_s"],
    )
    step_tokens = max(max_batch, int(number(where, values, "max_step_tokens")))
    weight_bytes = int(node["weight_bytes"])
    return PoolHardware(
        cost, num_blocks, int(block_bytes), weight_bytes, slots, max_batch, step_tokens
    )


def number(where: str, values: Mapping[str, Any], key: str) -> float:
    """A number that is not negative. Raises BadHardware."""
    value = values.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e18:
        raise BadHardware(f"{where}: {key} must be a number of 0 or more, got {value!r}")
    return float(value)
