"""Homes of a fleet that share an object store, and conversations whose every byte is known."""

from contextlib import closing
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from random import Random

from kv_tier.budget import TierLimits
from kv_tier.chain import BLOCK_TOKENS, fingerprint_of
from kv_tier.format import Kind, token_bytes
from kv_tier.manifest import Checkpoint, Manifest, Message
from kv_tier.names import kind_and_key, links_of
from kv_tier.objects import Source
from kv_tier.open_object import Missing, open_file
from kv_tier.prefix import Sizes
from kv_tier.remote.bucket import Bucket, StoreError
from kv_tier.remote.remote import Remote
from kv_tier.tier import KvTier

TENANT = "acme"
FINGERPRINT = fingerprint_of("weights", 3, (256, 2))
SIZES = Sizes(FINGERPRINT, block_bytes=9000, token_bytes=20, state_bytes=5000)


def payload_of(kind: Kind, token_ids) -> bytes:
    """What a model would have computed for these tokens."""
    num_bytes = SIZES.payload_bytes(kind, len(token_ids) % BLOCK_TOKENS)
    seed = sha256(kind.encode() + token_bytes(token_ids)).digest()
    return Random(seed).randbytes(num_bytes)


class Home:
    """A folder of sessions with a salt of its own, and the store behind it."""

    def __init__(self, root: Path, bucket, **limits) -> None:
        self.tier = KvTier(root, TierLimits(), now_ms=lambda: self.now_ms)
        self.now_ms = 1_700_000_000_000
        self.remote = None
        if bucket is not None:
            self.remote = Remote(bucket, self.tier, now_ms=lambda: self.now_ms, **limits)

    def close(self) -> None:
        if self.remote is not None:
            self.remote.close()
        self.tier.close()

    def say(
        self, session_id: str, token_ids, *, fence=0, generation=None, tenant=TENANT
    ) -> Manifest:
        """The session's log is these tokens now, all but the last with KV and a state."""
        tier, token_ids = self.tier, tuple(token_ids)
        fence = tier.sessions.take(tenant, session_id, fence)
        head = tier.sessions.head(tenant, session_id)
        chain, num_kv = tier.chain(tenant, FINGERPRINT), len(token_ids) - 1
        end = chain.key_at(token_ids, num_kv)
        manifest = Manifest(
            tenant=tenant,
            session_id=session_id,
            generation=generation or (head.generation if head else 0) + 1,
            fence=fence,
            fingerprint=FINGERPRINT,
            model="a model",
            weights_digest="weights",
            arithmetic_version="3",
            created_ms=self.now_ms,
            used_ms=self.now_ms,
            token_ids=token_ids,
            messages=(Message("user", f"{len(token_ids)} tokens"),),
            num_kv=num_kv,
            blocks=tuple(chain.block_keys(token_ids[:num_kv])),
            tail=end if num_kv % BLOCK_TOKENS else None,
            checkpoints=(Checkpoint(num_kv, end),),
        )
        tier.put(tenant, [self.source(manifest, link) for link in links_of(manifest)])
        tier.commit(manifest)
        return manifest

    def source(self, manifest: Manifest, link) -> Source:
        kind, key = kind_and_key(link.name)
        payload = payload_of(kind, manifest.token_ids[: link.depth])
        return Source(key, kind, link.num_tokens, (payload,), FINGERPRINT, manifest.tenant)

    def holds(self, manifest: Manifest) -> int:
        """How many of its objects are here; each of them is what was computed."""
        found = 0
        for link in links_of(manifest):
            kind, key = kind_and_key(link.name)
            try:
                opened = open_file(self.tier.objects.path(kind, key))
            except Missing:
                continue
            with closing(opened):
                opened.verify()
                expected = payload_of(kind, manifest.token_ids[: link.depth])
                assert bytes(opened.view()) == expected, (kind, link.depth)
                assert (opened.num_tokens, opened.tenant) == (link.num_tokens, manifest.tenant)
            found += 1
        return found


class Shaky:
    """A bucket whose calls fail when told to, and whose lists may lag.

    fails  names of methods that raise StoreError
    lags   a list does not show what was put since it was set, and shows what was deleted
    """

    def __init__(self, bucket: Bucket) -> None:
        self.bucket, self.url = bucket, bucket.url
        self.fails: set[str] = set()
        self.shown = None
        self.calls: list[tuple[str, str]] = []

    def lag(self, folder: str = "sessions") -> None:
        self.shown = list(self.bucket.list(folder))

    def put(self, name, parts, *, new=False):
        self._call("put", name)
        return self.bucket.put(name, parts, new=new)

    def get(self, name):
        self._call("get", name)
        return self.bucket.get(name)

    def head(self, name):
        self._call("head", name)
        return self.bucket.head(name)

    def list(self, folder):
        self._call("list", folder)
        if self.shown is not None and folder.startswith("sessions"):
            return [one for one in self.shown if one.name.startswith(folder)]
        return self.bucket.list(folder)

    def delete(self, name):
        self._call("delete", name)
        self.bucket.delete(name)

    def _call(self, what, name):
        self.calls.append((what, name))
        if what in self.fails:
            raise StoreError(f"{what} {name}: told to fail")

    def names(self, what):
        return [name for called, name in self.calls if called == what]


def replace_byte(data: bytes, index: int, by: int) -> bytes:
    return data[:index] + bytes([data[index] ^ by]) + data[index + 1 :]


def as_pulled(manifest: Manifest, home: Home) -> Manifest:
    """What another home has of it, apart from fence and generation."""
    from kv_tier.renamed import renamed

    return renamed(manifest, home.tier.chain(manifest.tenant, manifest.fingerprint))


def later(manifest: Manifest, **changes) -> Manifest:
    return replace(manifest, **changes)
