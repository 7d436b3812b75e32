"""Sessions that are written and read without an engine; every byte follows from what it stands for.

The payload of an object is a function of tenant, fingerprint and all tokens before its end. So who
reads the wrong one, of whomever, sees it.
"""

import hashlib
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

from kv_tier.budget import TierLimits
from kv_tier.chain import BLOCK_TOKENS, Chain, fingerprint_of
from kv_tier.files import OsFiles
from kv_tier.format import Kind, file_bytes
from kv_tier.manifest import Checkpoint, Manifest
from kv_tier.objects import Source
from kv_tier.open_object import OpenObject
from kv_tier.prefix import Prefix, Sizes
from kv_tier.tier import KvTier

BLOCK_BYTES, TOKEN_BYTES, STATE_BYTES = 4096, 16, 1000
LLAMA = Sizes(fingerprint_of("llama", 1, (2, 2)), BLOCK_BYTES, TOKEN_BYTES, 0)
HYBRID = Sizes(fingerprint_of("hybrid", 1, (2, 2)), BLOCK_BYTES, TOKEN_BYTES, STATE_BYTES)
BLOCK_FILE, STATE_FILE = file_bytes(BLOCK_BYTES), file_bytes(STATE_BYTES)
START_MS = 1_700_000_000_000


class Clock:
    """Unix milliseconds that pass only when told."""

    def __init__(self) -> None:
        self.ms = START_MS

    def __call__(self) -> int:
        return self.ms


def nothing(_: bytes) -> bool:
    """An engine whose RAM is empty."""
    return False


class Talker:
    """What a pool does with a tier, without the engine."""

    def __init__(
        self,
        root: Path,
        limits: TierLimits | None = None,
        sizes: Sizes = LLAMA,
        files: OsFiles | None = None,
    ) -> None:
        self.clock = Clock()
        self.sizes = sizes
        self.tier = KvTier(root, limits or TierLimits(), files=files, now_ms=self.clock)

    def chain(self, tenant: str) -> Chain:
        return self.tier.chain(tenant, self.sizes.fingerprint)

    def sources(self, tenant: str, tokens: Sequence[int], *, state: bool = True) -> list[Source]:
        """Blocks, tail and state of tokens, all of which have KV."""
        chain, end = self.chain(tenant), len(tokens)
        keys = chain.block_keys(tokens)
        found = [
            self._source(tenant, "block", key, tokens[: (i + 1) * BLOCK_TOKENS])
            for i, key in enumerate(keys)
        ]
        if end % BLOCK_TOKENS:
            found.append(self._source(tenant, "tail", chain.key_at(tokens, end), tokens))
        if state and end and self.sizes.state_bytes:
            found.append(self._source(tenant, "state", chain.key_at(tokens, end), tokens))
        return found

    def manifest(
        self, tenant: str, session_id: str, tokens: Sequence[int], *, kv: bool = True
    ) -> Manifest:
        """The next generation; the last token has no KV."""
        head = self.tier.sessions.head(tenant, session_id)
        fence = self.tier.sessions.take(tenant, session_id, 0)
        num_kv = len(tokens) - 1 if kv else 0
        chain = self.chain(tenant)
        has_state = bool(num_kv and self.sizes.state_bytes)
        return Manifest(
            tenant=tenant,
            session_id=session_id,
            generation=head.generation + 1 if head else 1,
            fence=fence,
            fingerprint=self.sizes.fingerprint,
            model="m",
            weights_digest="w",
            arithmetic_version="1",
            created_ms=head.created_ms if head else self.clock(),
            used_ms=self.clock(),
            token_ids=tuple(tokens),
            num_kv=num_kv,
            blocks=tuple(chain.block_keys(tokens[:num_kv])),
            tail=chain.key_at(tokens, num_kv) if num_kv % BLOCK_TOKENS else None,
            checkpoints=(Checkpoint(num_kv, chain.key_at(tokens, num_kv)),) if has_state else (),
        )

    def say(self, tenant: str, session_id: str, tokens: Sequence[int]) -> Manifest:
        """One turn: what was computed is written, and a manifest names it."""
        self.tier.put(tenant, self.sources(tenant, tokens[:-1]))
        manifest = self.manifest(tenant, session_id, tokens)
        self.tier.commit(manifest)
        return manifest

    def fetch(
        self,
        tenant: str,
        tokens: Sequence[int],
        *,
        ends: Sequence[int] | None = None,
        resident: Callable[[bytes], bool] = nothing,
        prefill_tokens_per_s: float = 0.0,
    ) -> Prefix:
        """What is there of these tokens. ends: any place, when nothing is said."""
        return self.tier.fetch(
            self.chain(tenant),
            tokens,
            self.sizes,
            ends=range(len(tokens)) if ends is None else ends,
            resident=resident,
            prefill_tokens_per_s=prefill_tokens_per_s,
        )

    def hit(self, tenant: str, tokens: Sequence[int], **named: object) -> int:
        """How many tokens need not be computed; every byte that was given is checked."""
        with closing(self.fetch(tenant, tokens, **named)) as prefix:
            self.check(tenant, tokens, prefix)
            return prefix.end

    def check(self, tenant: str, tokens: Sequence[int], prefix: Prefix) -> None:
        """Each file holds what these tokens of this tenant make, and nothing else."""
        for i, key in enumerate(prefix.keys):
            if key in prefix.blocks:
                beginning = tokens[: (i + 1) * BLOCK_TOKENS]
                self._check_one(tenant, prefix.blocks[key], beginning)
        if prefix.tail is not None:
            self._check_one(tenant, prefix.tail, tokens[: prefix.tail_end])
        if prefix.state is not None:
            self._check_one(tenant, prefix.state, tokens[: prefix.state_end])
        assert prefix.end < max(1, len(tokens)), "one token is left to compute"

    def size(self) -> int:
        """Bytes of objects that are on the disk."""
        return sum(num_bytes for _, _, num_bytes, _ in self.tier.objects.walk())

    def close(self) -> None:
        self.tier.close()

    def _check_one(self, tenant: str, opened: OpenObject, tokens: Sequence[int]) -> None:
        expected = self._payload(tenant, opened.kind, tokens)
        assert bytes(opened.view()) == expected, (tenant, opened.kind, len(tokens))

    def _source(self, tenant: str, kind: Kind, key: bytes, tokens: Sequence[int]) -> Source:
        rest = {"block": BLOCK_TOKENS, "tail": len(tokens) % BLOCK_TOKENS, "state": len(tokens)}
        payload = self._payload(tenant, kind, tokens)
        return Source(key, kind, rest[kind], (payload,), self.sizes.fingerprint, tenant)

    def _payload(self, tenant: str, kind: Kind, tokens: Sequence[int]) -> bytes:
        said = repr((tenant, self.sizes.fingerprint, kind, list(tokens))).encode()
        num_bytes = self.sizes.payload_bytes(kind, len(tokens) % BLOCK_TOKENS)
        return hashlib.shake_128(said).digest(num_bytes)


def tokens_of(seed: int, num_tokens: int) -> list[int]:
    """Token ids that no other seed has."""
    return [seed * 100_000 + i for i in range(num_tokens)]
