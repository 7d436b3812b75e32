"""A made-up conversation of several turns, and what must be true of it after any accident.

Every byte of its objects follows from their keys, so that a wrong byte is seen wherever it is.
"""

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from random import Random

from kv_tier.chain import Chain, fingerprint_of
from kv_tier.files import DiskError, OsFiles
from kv_tier.format import BLOCK_TOKENS, CorruptFile, Kind
from kv_tier.manifest import Checkpoint, Manifest, Message
from kv_tier.objects import ObjectStore, Source
from kv_tier.open_object import Missing
from kv_tier.sessions import Sessions

TENANT, SESSION = "default", "talk"
FINGERPRINT = fingerprint_of("weights", 3, (256, 2))
SALT = bytes(range(32))
CHAIN = Chain(SALT, TENANT, FINGERPRINT)
TURNS, TURN_TOKENS = 4, 150
PAYLOAD_BYTES: dict[Kind, int] = {"block": 9000, "tail": 3000, "state": 5000}


def tokens_after(turn: int) -> tuple[int, ...]:
    return tuple(range(100, 100 + turn * TURN_TOKENS))


def payload_of(kind: Kind, key: bytes) -> bytes:
    return Random(key + kind.encode()).randbytes(PAYLOAD_BYTES[kind])


def source_of(kind: Kind, key: bytes, num_tokens: int) -> Source:
    payload = payload_of(kind, key)
    parts = (payload[:100], payload[100:])
    return Source(key, kind, num_tokens, parts, FINGERPRINT, TENANT)


def manifest_after(turn: int, generation: int, fence: int) -> Manifest:
    """The log of a turn, without any KV."""
    return Manifest(
        tenant=TENANT,
        session_id=SESSION,
        generation=generation,
        fence=fence,
        fingerprint=FINGERPRINT,
        model="a model",
        weights_digest="weights",
        arithmetic_version="3",
        created_ms=1_700_000_000_000,
        used_ms=1_700_000_000_000 + turn,
        token_ids=tokens_after(turn),
        messages=(Message("user", f"turn {turn}"),),
    )


def with_kv(manifest: Manifest) -> tuple[Manifest, list[Source]]:
    """The same with all of its KV but the last token's, and what has to be written for it."""
    ids = manifest.token_ids
    num_kv = len(ids) - 1
    blocks = CHAIN.block_keys(ids[:num_kv])
    rest = num_kv % BLOCK_TOKENS
    end = CHAIN.key_at(ids, num_kv)
    sources = [source_of("block", key, BLOCK_TOKENS) for key in blocks]
    sources += [source_of("tail", end, rest)] if rest else []
    sources += [source_of("state", end, num_kv)]
    tail, checkpoints = end if rest else None, (Checkpoint(num_kv, end),)
    whole = replace(
        manifest, num_kv=num_kv, blocks=tuple(blocks), tail=tail, checkpoints=checkpoints
    )
    return whole, sources


def talk(root: Path, files: OsFiles, tell: Callable[[str, int], None]) -> None:
    """All turns, from wherever the head is. A turn: take a fence, commit the log (generations 1, 3,
    …), write KV, commit a manifest that names it (2, 4, …).

    tell(what, number)  "fence" or "generation", right after it was promised
    """
    sessions, objects = Sessions(root, files), ObjectStore(root, files)
    head = sessions.head(TENANT, SESSION)
    for generation in range(head.generation + 1 if head else 1, 2 * TURNS + 1):
        fence = sessions.take(TENANT, SESSION, 0)
        tell("fence", fence)
        log = manifest_after((generation + 1) // 2, generation, fence)
        manifest, sources = with_kv(log) if generation % 2 == 0 else (log, [])
        for source in sources:
            objects.write(source)
        objects.sync()
        sessions.commit(manifest)
        tell("generation", generation)


def check(root: Path, *, fence: int, generation: int, may_be_next: bool = True) -> None:
    """What was promised is there, nothing is served that is wrong.

    fence, generation  the last that talk told; what was under way then may have happened, too
    """
    head = Sessions(root).head(TENANT, SESSION)
    found = head.generation if head else 0
    assert generation <= found <= generation + may_be_next, (generation, found)
    if head is not None:
        check_head(head, ObjectStore(root))
    check_objects(ObjectStore(root))
    assert Sessions(root).take(TENANT, SESSION, 0) > fence


def check_head(head: Manifest, objects: ObjectStore) -> None:
    """The head is what was committed, and all that it names is there, whole and right."""
    turn = (head.generation + 1) // 2
    log = manifest_after(turn, head.generation, head.fence)
    expected, sources = with_kv(log) if head.generation % 2 == 0 else (log, [])
    assert head == expected
    for source in sources:
        size = PAYLOAD_BYTES[source.kind]
        with closing(objects.open(source.kind, source.key, FINGERPRINT, size)) as opened:
            opened.verify()


def check_objects(objects: ObjectStore) -> None:
    """Of all there is, nothing verifies that is not what it is named."""
    for kind, key, _, _ in objects.walk():
        try:
            with closing(objects.open(kind, key, FINGERPRINT, PAYLOAD_BYTES[kind])) as opened:
                opened.verify()
                assert bytes(opened.view()) == payload_of(kind, key), (kind, key.hex())
        except (CorruptFile, DiskError, Missing):
            continue
