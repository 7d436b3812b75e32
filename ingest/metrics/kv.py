"""What /metrics says of KV: what was not computed again, and where it came from.

    lockstep_kv_...{pool, worker, node}  of each pool, since it began: PoolLoad.kv
    lockstep_kv_disk_...                 of this node's folder of sessions, as it is now

A tier is where KV was found: ram (a pool's own memory), cache (files in the page cache), disk.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ingest.metrics.pools import NODE, POOL, labels_of, tail
from workers.wire import PoolLoad


class Told(NamedTuple):
    """One name of PoolLoad.kv as a metric; a counter's name gets _total."""

    metric: str
    help: str
    is_counter: bool = True
    tier: str = ""


NAMES: Final[Mapping[str, Told]] = {
    "reused_tokens": Told("reused_tokens", "prompt tokens that were not computed again"),
    "computed_prompt_tokens": Told("computed_prompt_tokens", "prompt tokens that were computed"),
    "hits": Told("hits", "prompts whose beginning was found"),
    "misses": Told("misses", "prompts of which nothing was found"),
    "skipped": Told("skipped", "restores that would have been slower than computing"),
    "skipped_tokens": Told("skipped_tokens", "prompt tokens of skipped restores"),
    "seconds_saved": Told("saved_seconds", "prefill that was not needed, less the restores"),
    "tokens_ram": Told("hit_tokens", "prompt tokens found, by tier", tier="ram"),
    "tokens_cache": Told("hit_tokens", "prompt tokens found, by tier", tier="cache"),
    "tokens_disk": Told("hit_tokens", "prompt tokens found, by tier", tier="disk"),
    "bytes_cache": Told("read_bytes", "bytes of files that were read, by tier", tier="cache"),
    "bytes_disk": Told("read_bytes", "bytes of files that were read, by tier", tier="disk"),
    "cache_bytes_per_s": Told("restore_bytes_per_second", "measured speed", False, "cache"),
    "disk_bytes_per_s": Told("restore_bytes_per_second", "measured speed", False, "disk"),
    "cached_blocks": Told("cached_blocks", "blocks that nobody uses and anybody may find", False),
    "mapped_blocks": Told("mapped_blocks", "blocks that are files, read in place", False),
    "dropped_blocks": Told("dropped_blocks", "cached blocks that gave way to others"),
    "state_checkpoints": Told("state_checkpoints", "recurrent states kept in RAM", False),
    "free_state_slots": Told("free_state_slots", "slots for recurrent state", False),
    "bad_files": Told("bad_files", "damaged files that were met and dropped"),
    "prefetched_sessions": Told("prefetched_sessions", "sessions whose files were asked for early"),
    "written_objects": Told("written_objects", "files of KV and state written"),
    "written_bytes": Told("written_bytes", "bytes of them"),
    "evicted_objects": Told("evicted_objects", "files that gave way to others"),
    "evicted_bytes": Told("evicted_bytes", "bytes of them"),
    "undeletable": Told("undeletable_objects", "files that should have gone and could not"),
    "suspended_bytes": Told("suspended_bytes", "bytes written behind ended turns"),
    "suspended_s": Told("suspend_seconds", "time that it took"),
    "behind_bytes": Told("behind_bytes", "bytes written behind turns that went on"),
    "behind_s": Told("behind_seconds", "time that it took"),
    "suspend_failed": Told("suspend_failed", "turns whose KV could not be written"),
    "suspend_dropped": Told("suspend_dropped", "turns whose KV was not written: too many waited"),
    "suspend_waiting": Told("suspend_waiting", "turns whose KV waits to be written", False),
    "store_pushed_sessions": Told("store_pushed_sessions", "sessions sent to the object store"),
    "store_sent_objects": Told("store_sent_objects", "objects of KV sent to the object store"),
    "store_sent_bytes": Told("store_sent_bytes", "bytes sent to the object store"),
    "store_sent_s": Told("store_sent_seconds", "time that sending there took"),
    "store_known_objects": Told("store_known_objects", "objects that the object store had"),
    "store_fetched_objects": Told("store_fetched_objects", "objects fetched from the object store"),
    "store_fetched_bytes": Told("store_fetched_bytes", "bytes fetched from the object store"),
    "store_fetched_s": Told("store_fetched_seconds", "time that fetching took"),
    "store_damaged": Told("store_damaged", "objects that arrived damaged and were deleted there"),
    "store_failures": Told("store_failures", "times that the object store did not do it"),
    "store_swept_objects": Told("store_swept_objects", "objects that nobody named and that went"),
    "recalled_store": Told(
        "recalled_sessions", "sessions brought from elsewhere, by tier", tier="store"
    ),
    "recalled_log": Told(
        "recalled_sessions", "sessions brought from elsewhere, by tier", tier="log"
    ),
    "recall_failed": Told("recall_failed", "sessions whose last turn nobody had"),
}
OF_THE_FOLDER: Final = ("bytes", "objects", "sessions", "reserved_bytes", "quota_bytes")
DISK: Final[Mapping[str, str]] = {
    "sessions": "sessions kept on this node",
    "objects": "files of KV and state",
    "bytes": "bytes of all of them, manifests included",
    "reserved_bytes": "bytes about to be written",
    "quota_bytes": "bytes that they may take; 0: without a limit",
    "free_bytes": "bytes free on that disk",
}
NAME: Final = re.compile(r"[a-z][a-z0-9_]*")


class KvMetrics(Collector):
    """Set loads and disk, then let it be collected.   node: whose disk it is"""

    def __init__(self, node: str = "") -> None:
        self.node = node
        self.loads: Sequence[PoolLoad] = ()
        self.disk: Mapping[str, float] = {}

    def collect(self) -> Iterator[Metric]:
        families: dict[str, CounterMetricFamily | GaugeMetricFamily] = {}
        for load in self.loads:
            for name, value in load.kv.items():
                if name not in OF_THE_FOLDER and NAME.fullmatch(name):
                    told = NAMES.get(name, Told(name, "as the pool says", False))
                    family = families.setdefault(told.metric, family_of(told))
                    tier = (told.tier,) if told.tier else ()
                    family.add_metric(labels_of(load, *tier), value)
        yield from families.values()
        for name, help_ in DISK.items():
            if name in self.disk:
                disk = GaugeMetricFamily(f"lockstep_kv_disk_{name}", help_, labels=(NODE,))
                disk.add_metric(tail(self.node), self.disk[name])
                yield disk


def family_of(told: Told) -> CounterMetricFamily | GaugeMetricFamily:
    labels = (*POOL, "tier", NODE) if told.tier else (*POOL, NODE)
    kind = CounterMetricFamily if told.is_counter else GaugeMetricFamily
    return kind(f"lockstep_kv_{told.metric}", told.help, labels=labels)
