"""What the object store of sessions costs and saves: bandwidth, and the first token elsewhere.

    python tests/bench/bench_store.py [--mib 512] [--url URL] [--tokens 1900] [--json]

Bandwidth: one session of blocks of 16 MiB (a 27B model's), sent, sent once more, and fetched
by another home. First token: three nodes of a fleet with the default model; a session of the first
goes on there, at the second through the store, at the third from the token log alone.
"""

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from kv_tier.chain import BLOCK_TOKENS, fingerprint_of
from kv_tier.manifest import Manifest
from kv_tier.names import links_of
from kv_tier.objects import Source
from kv_tier.prefix import Sizes
from kv_tier.remote.bucket import Bucket
from kv_tier.remote.pull import newest, pull
from kv_tier.remote.push import push
from kv_tier.remote.remote import Remote
from kv_tier.tier import KvTier, TierLimits

ROOT = Path(__file__).parents[2]
BLOCK_BYTES = 16 << 20
FINGERPRINT = fingerprint_of("made up", 3, (256, 2))
SIZES = Sizes(FINGERPRINT, BLOCK_BYTES, BLOCK_BYTES // BLOCK_TOKENS, 0)


def bandwidth(folder: Path, url: str, num_blocks: int) -> list[dict[str, Any]]:
    """Rows: push, push again, pull."""
    one, other = KvTier(folder / "one", TierLimits()), KvTier(folder / "other", TierLimits())
    say(one, num_blocks)
    rows = []
    sender, fetcher = Remote(Bucket(url), one), Remote(Bucket(url), other)
    for name in ("push", "push again"):
        begin = time.perf_counter()
        done = push(sender, "default", "s", trusts=name == "push")
        rows.append(row(name, done.num_bytes, time.perf_counter() - begin))
    begin = time.perf_counter()
    found = newest(fetcher, "default", "s")
    assert found is not None
    come = pull(fetcher, found, SIZES)
    rows.append(row("pull", come.num_bytes, time.perf_counter() - begin))
    assert come.left == 0, come
    for closable in (sender, fetcher, one, other):
        closable.close()
    return rows


def row(name: str, num_bytes: int, seconds: float) -> dict[str, Any]:
    mb = num_bytes / 1e6
    return {"case": name, "mb": round(mb), "seconds": round(seconds, 3), "mb_per_s": mb / seconds}


def say(tier: KvTier, num_blocks: int) -> None:
    """A session of so many full blocks of noise."""
    token_ids = tuple(range(num_blocks * BLOCK_TOKENS + 1))
    fence = tier.sessions.take("default", "s", 0)
    manifest = Manifest(
        *("default", "s", 1, fence, FINGERPRINT, "m", "made up", "3", 1, 1, token_ids),
        num_kv=num_blocks * BLOCK_TOKENS,
        blocks=tuple(tier.chain("default", FINGERPRINT).block_keys(token_ids)),
    )
    noise = os.urandom(BLOCK_BYTES)
    for link, key in zip(links_of(manifest), manifest.blocks, strict=True):
        source = Source(key, "block", BLOCK_TOKENS, (noise,), FINGERPRINT, "default")
        tier.put("default", [source])
        assert link.num_tokens == BLOCK_TOKENS
    tier.commit(manifest)


def first_tokens(folder: Path, url: str, num_tokens: int, rounds: int) -> list[dict[str, Any]]:
    """Rows: a session's next turn at home, elsewhere through the store, from the token log."""
    from tests.bench.three_nodes import ThreeNodes

    rows = []
    with ThreeNodes(folder, url) as nodes:
        for name in ("home", "store", "log"):
            told = [nodes.resumed(f"{name}-{n}", num_tokens, name) for n in range(rounds)]
            ttft = statistics.median(one["ttft_ms"] for one in told)
            cached = told[0]["cached_tokens"]
            rows.append({"case": name, "tokens": told[0]["prompt_tokens"], "cached": cached})
            rows[-1]["ttft_ms"] = round(ttft)
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=1900)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--url", help="absent: a folder beside the homes")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="bench-store-"))
    url = options.url or f"file://{folder}/shared"
    try:
        rows = bandwidth(folder, url, options.mib >> 4)
        if options.rounds:
            rows += first_tokens(folder, url, options.tokens, options.rounds)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    for one in rows:
        print(json.dumps(one) if options.json else one)
    return 0


if __name__ == "__main__":
    sys.exit(main())
