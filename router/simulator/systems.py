"""The systems that are compared: batchEngine, batchEngine without one of its mechanisms, baselines.

    gpu, gpu+cpu             ours, on the GPU alone and on both processors
    without-MECHANISM        gpu+cpu with one mechanism switched off
    fifo-gpu                 GPU alone, first come, first served
    priority-gpu             GPU alone, urgent classes first, chunked prefill, KV in files
    splitter                 two servers, each like priority-gpu, and a router that sends a fixed
                             share of what is not urgent to the CPU: the do-it-yourself rival
    fixed-split              the published rule: by class and context length, at arrival, for good
    pp2                      the pipeline over two nodes that was replaced: two GPUs, each with half
                             of the layers; capacity is told per node

Who has a free number (step budget, chunk, share, length) gets the one that is best: `variants`. All
have the same engine with the same memory rules, the same costs and the same files.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import xxhash

from router.placement import ALL, Plan, Switches, place, too_large
from router.pools import PoolView, Wanted
from router.replan import Job as Placed
from router.replan import Move, replan
from router.simulator.clock import Clock
from router.simulator.hardware import Hardware, PoolHardware
from router.simulator.node import Node
from router.simulator.pool import SimPool
from router.simulator.steps import EngineKind
from workers.cost import CostModel
from workers.sla import SlaTable

CHUNKS: Final = (128, 512)  # prefill tokens of a step, where they are fixed
BUDGETS_MS: Final = (200, 400)  # of a step (the setting step_budget_ms), where they are not
SHARES: Final = (0.03, 0.1, 0.25, 0.5)  # of what is not urgent that a splitter sends to the CPU
LENGTHS: Final = (256, 1024, 4096, 1 << 20)  # prompts up to here the fixed split runs on the CPU
NETWORK_MS: Final = 0.5  # one way, between the two nodes of a pipeline


class BatchEngine:
    """Ours: router/placement.py and router/replan.py."""

    def __init__(self, table: SlaTable, switches: Switches = ALL) -> None:
        self.table, self.switches = table, switches

    def place(
        self,
        wanted: Wanted,
        home: str | None,
        pools: Sequence[PoolView],
        now_ms: int,
        backlog: Mapping[str, int],
    ) -> Plan:
        return place(wanted, home, pools, self.table, now_ms, self.switches, backlog)

    def replan(self, pools: Sequence[PoolView], jobs: Sequence[Placed], now_ms: int) -> list[Move]:
        return replan(pools, jobs, self.table, now_ms, self.switches)


class Fixed:
    """A rule that looks at the request alone, and never again."""

    def pool_of(self, wanted: Wanted) -> str:
        return "gpu"

    def place(
        self,
        wanted: Wanted,
        home: str | None,
        pools: Sequence[PoolView],
        now_ms: int,
        backlog: Mapping[str, int],
    ) -> Plan:
        """Where the rule's pool cannot hold it: another that can."""
        fitting = [pool.name for pool in pools if pool.is_ready and pool.holds(wanted.num_tokens)]
        if not fitting:
            return Plan("refuse", "", too_large(wanted, pools), forever=True)
        wished = self.pool_of(wanted)
        pool = wished if wished in fitting else fitting[0]
        return Plan(pool, pool, f"{pool}: by a fixed rule")

    def replan(self, pools: Sequence[PoolView], jobs: Sequence[Placed], now_ms: int) -> list[Move]:
        return []


class Splitter(Fixed):
    """Urgent: GPU. All else by a hash of the conversation, so that its turns find each other."""

    def __init__(self, share: float, urgent: str) -> None:
        self.share, self.urgent = share, urgent

    def pool_of(self, wanted: Wanted) -> str:
        if wanted.sla == self.urgent:
            return "gpu"
        session = wanted.request_id.partition("-")[0]
        return "cpu" if xxhash.xxh3_64_intdigest(session.encode()) < self.share * 2**64 else "gpu"


class FixedSplit(Fixed):
    """Short and not urgent: CPU. All else: GPU."""

    def __init__(self, length: int, urgent: str) -> None:
        self.length, self.urgent = length, urgent

    def pool_of(self, wanted: Wanted) -> str:
        is_for_cpu = wanted.sla != self.urgent and wanted.prompt_tokens <= self.length
        return "cpu" if is_for_cpu else "gpu"


@dataclass(frozen=True, slots=True)
class System:
    """nodes: machines that it takes; its capacity is told for one of them."""

    name: str
    pools: tuple[str, ...] = ("gpu", "cpu")
    kind: EngineKind = field(default_factory=EngineKind)
    switches: Switches | None = None
    share: float | None = None
    length: int | None = None
    nodes: int = 1

    @property
    def has_files(self) -> bool:
        return self.switches is None or self.switches.tiers


OURS: Final = ("gpu", "gpu+cpu")
MECHANISMS: Final = ("routing", "handoff", "promotion", "preemption", "tiers")
BASELINES: Final = ("fifo-gpu", "priority-gpu", "splitter", "fixed-split", "pp2")
NAMES: Final = (*OURS, *(f"without-{name}" for name in MECHANISMS), *BASELINES)


def variants(name: str) -> list[System]:
    """A system, once for each number that it may choose. Raises KeyError when there is none."""
    if name in OURS or name.startswith("without-"):
        one = ours(name)
        return [replace(one, kind=replace(one.kind, budget_ms=budget)) for budget in BUDGETS_MS]
    gpu = [System(name, ("gpu",), EngineKind("priority", chunk)) for chunk in CHUNKS]
    if name == "priority-gpu":
        return gpu
    if name == "fifo-gpu":
        return [replace(one, kind=replace(one.kind, order="fifo")) for one in gpu]
    if name == "pp2":
        return [replace(one, nodes=2) for one in gpu]
    both = [replace(one, pools=("gpu", "cpu")) for one in gpu]
    if name == "splitter":
        return [replace(one, share=share) for one in both for share in SHARES]
    if name == "fixed-split":
        return [replace(one, length=length) for one in both for length in LENGTHS]
    raise KeyError(name)


def ours(name: str) -> System:
    """batchEngine, or what is left of it. Raises KeyError when there is no such mechanism."""
    if name in OURS:
        return System(name, tuple(name.split("+")), switches=ALL)
    mechanism = name.removeprefix("without-")
    if mechanism not in MECHANISMS:
        raise KeyError(name)
    kind = EngineKind()
    if mechanism == "preemption":
        kind = EngineKind("priority", suspends=False)
    return System(name, kind=kind, switches=replace(ALL, **{mechanism: False}))


def build(
    system: System,
    hardware: Hardware,
    table: SlaTable,
    clock: Clock,
    *,
    told: Mapping[str, CostModel] | None = None,
    one_by_one: bool = False,
    has_door: bool = True,
) -> Node:
    """told: what pools believe of their costs, by name, where it is not the truth."""
    pools = {}
    for name in system.pools:
        if name not in hardware.pools:
            continue
        one = hardware.pools[name]
        pools[name] = SimPool(
            name,
            piped(one, system.nodes) if system.nodes > 1 else one,
            clock,
            table,
            system.kind,
            told=(told or {}).get(name),
            has_files=system.has_files,
            one_by_one=one_by_one,
        )
    return Node(pools, policy_of(system, table), table, clock, has_door=has_door)


def policy_of(system: System, table: SlaTable) -> BatchEngine | Fixed:
    if system.switches is not None:
        return BatchEngine(table, system.switches)
    if system.share is not None:
        return Splitter(system.share, table.names[0])
    if system.length is not None:
        return FixedSplit(system.length, table.names[0])
    return Fixed()


def piped(one: PoolHardware, nodes: int) -> PoolHardware:
    """GPUs that each hold a share of the layers, and work on different sequences at once.

    A token passes all of them, so a step's fixed part stays, and the network comes on top; what it
    costs per sequence and token is shared. Memory is that of all of them, and the weights' share
    of each is less: what `weights_bytes` says would fit in addition.
    """
    cost = one.cost
    shared = {
        key: getattr(cost, key) / nodes
        for key in ("decode_ms", "prefill_ms", "context_us", "prefill_context_us")
    }
    fixed_ms = cost.fixed_ms + nodes * NETWORK_MS
    kv_bytes = nodes * one.num_blocks * one.block_bytes + (nodes - 1) * one.weight_bytes
    return replace(
        one,
        cost=CostModel(
            fixed_ms=fixed_ms,
            **shared,
            kv_bytes_per_token=cost.kv_bytes_per_token,
            state_bytes=cost.state_bytes,
            read_bytes_per_s=cost.read_bytes_per_s,
            write_bytes_per_s=cost.write_bytes_per_s,
        ),
        num_blocks=kv_bytes // one.block_bytes,
        state_slots=nodes * one.state_slots,
        max_batch=nodes * one.max_batch,
        max_step_tokens=nodes * one.max_step_tokens,
    )
