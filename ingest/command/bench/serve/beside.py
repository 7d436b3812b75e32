"""The same load through the simulator, with the costs that the node's own pools report.

What comes out differently shows where the simulator, or the pools' cost models, are wrong: the real
node has processes that share cores, a network, a store; the simulator has none of that.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from ingest.command.bench.serve.record import Record
from ingest.command.bench.serve.summary import percentile, span
from router.pools import STEP_TOKENS
from router.simulator.clock import Clock
from router.simulator.hardware import BLOCK_TOKENS, Hardware, PoolHardware
from router.simulator.job import FINISHED, Job
from router.simulator.systems import build, variants
from router.simulator.workload import Wish
from workers.sla import SlaTable
from workers.wire import PoolLoad

STATE_SLOTS_OF_ONE: Final = 2  # of a sequence: its state, and a checkpoint


class NoCosts(Exception):
    """A pool has not said yet what its steps cost."""


def hardware_of(loads: Sequence[PoolLoad], context: int) -> Hardware:
    """The node as its ready pools describe it. Raises NoCosts."""
    ready = [load for load in loads if load.state == "ready"]
    pools = {load.pool: pool_of(load) for load in ready}
    return Hardware("the running node", ready[0].model if ready else "", context, pools)


def pool_of(load: PoolLoad) -> PoolHardware:
    if load.cost is None:
        raise NoCosts(f"the {load.pool} pool has not said yet what its steps cost")
    return PoolHardware(
        cost=load.cost,
        num_blocks=load.total_blocks,
        block_bytes=load.cost.kv_bytes_per_token * BLOCK_TOKENS,
        weight_bytes=0,
        state_slots=STATE_SLOTS_OF_ONE * load.capacity if load.cost.state_bytes else 0,
        max_batch=load.capacity,
        max_step_tokens=load.step_tokens or STEP_TOKENS,
    )


def simulate(wishes: Sequence[Wish], hardware: Hardware, table: SlaTable) -> list[Record]:
    """What the simulator says of each wish, in order of arrival."""
    clock, jobs = Clock(), {}
    node = build(variants("gpu+cpu")[0], hardware, table, clock)

    def ended(job: Job) -> None:
        jobs[job.id] = job

    node.on_end = ended
    node.expect(wishes)
    clock.run()
    return [record_of(wish, jobs[wish.id]) for wish in wishes]


def record_of(wish: Wish, job: Job) -> Record:
    record = Record(wish.id, wish.sla, wish.arrival_ms / 1000, wish.prompt, wish.max_tokens)
    record.sent_s = record.at_s
    if job.state != FINISHED or job.first_ms is None or job.end_ms is None:
        record.fail("overloaded")
        return record
    first_s, end_s = job.first_ms / 1000, job.end_ms / 1000
    record.tokens_s = [first_s, end_s] if wish.output > 1 else [first_s]
    record.end_s, record.output_tokens, record.status = end_s, wish.output, "finished"
    record.pool, record.moves = job.pool, job.moves
    return record


def as_written(wishes: Sequence[Wish], records: Sequence[Record]) -> list[Wish]:
    """The wishes with as many output tokens as the model wrote: it may end before max_tokens."""
    wrote = [
        record.output_tokens or wish.output for wish, record in zip(wishes, records, strict=True)
    ]
    return [replace(wish, output=output) for wish, output in zip(wishes, wrote, strict=True)]


def compared(measured: Sequence[Record], simulated: Sequence[Record]) -> list[dict[str, Any]]:
    """One row a quantity: measured, simulated, and their ratio."""
    rows = []
    for name, of in (
        ("ttft_ms_p50", median_ttft),
        ("tpot_ms_p50", median_tpot),
        ("output_tokens_per_s", tokens_per_s),
    ):
        real, simulation = of(measured), of(simulated)
        ratio = round(simulation / real, 3) if real and simulation else None
        told = {"measured": shown(real), "simulated": shown(simulation), "ratio": ratio}
        rows.append({"quantity": name, **told})
    return rows


def median_ttft(records: Sequence[Record]) -> float | None:
    return percentile([r.ttft_ms for r in records if r.ttft_ms is not None], 50)


def median_tpot(records: Sequence[Record]) -> float | None:
    return percentile([r.tpot_ms for r in records if r.tpot_ms is not None], 50)


def tokens_per_s(records: Sequence[Record]) -> float | None:
    return sum(r.output_tokens for r in records) / span(records)


def shown(value: float | None) -> float | None:
    return None if value is None else round(value, 2)
