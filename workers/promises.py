"""What the classes promise and how full they are, as Redis tells it to scripts and to producers."""

from collections.abc import Mapping
from typing import Any, Final, cast

import msgspec

from workers.sla import SlaClass
from workers.store import Store
from workers.wire import KEEP_S, Pressure

PRESSURE_TTL_S: Final = 5


def tell_promises(store: Store) -> None:
    """Write what the classes promise, for the scripts that count whether it was kept."""
    promises = {sla.name: msgspec.json.encode(promised(sla)) for sla in store.table}
    with store.redis.pipeline(transaction=True) as pipeline:
        pipeline.delete(store.keys.sla)
        pipeline.hset(store.keys.sla, mapping=cast(Any, promises))
        pipeline.expire(store.keys.sla, KEEP_S)
        pipeline.execute()


def promised(sla: SlaClass) -> dict[str, int]:
    """What a class promises; what it does not is left out."""
    said = {"ttft_ms": sla.ttft_ms, "tpot_ms": sla.tpot_ms, "deadline_ms": sla.deadline_ms}
    return {name: value for name, value in said.items() if value is not None}


def press(store: Store, pressures: Mapping[str, Pressure]) -> None:
    """Tell producers how full the classes are; after PRESSURE_TTL_S nothing is known."""
    with store.redis.pipeline(transaction=False) as pipeline:
        for sla, pressure in pressures.items():
            told = msgspec.json.encode(pressure)
            pipeline.set(store.keys.pressure(sla), told, ex=PRESSURE_TTL_S)
        pipeline.execute()


def pressure(store: Store, sla: str) -> Pressure | None:
    """How full a class is; None: no router has said it lately."""
    told = cast(bytes | None, store.redis.get(store.keys.pressure(sla)))
    return None if told is None else msgspec.json.decode(told, type=Pressure)


def pressures(store: Store) -> dict[str, Pressure]:
    """How full each class is, of which a router has said it lately."""
    classes = store.keys.classes
    told = cast(list[bytes | None], store.redis.mget([store.keys.pressure(sla) for sla in classes]))
    return {
        sla: msgspec.json.decode(one, type=Pressure)
        for sla, one in zip(classes, told, strict=True)
        if one is not None
    }
