"""What a manifest names, and in which order it hangs together."""

from hypothesis import given
from hypothesis import strategies as st

from kv_tier.format import KINDS
from kv_tier.manifest import Checkpoint, Manifest, encode_manifest
from kv_tier.names import (
    Link,
    kind_and_key,
    lifted,
    links_of,
    manifest_bytes,
    name_of,
    parent_name,
)
from tests.kv_tier.test_fork import KEYS, WHOLE


def test_every_object_has_a_name_of_its_own():
    """A tail and a state at one place have the same key."""
    names = {name_of(kind, KEYS[0]) for kind in KINDS}
    assert len(names) == 3
    assert all(kind_and_key(name_of(kind, KEYS[1])) == (kind, KEYS[1]) for kind in KINDS)


def test_the_links_of_a_manifest():
    b0, b1, b2 = (name_of("block", key) for key in KEYS[:3])
    assert links_of(WHOLE) == [
        Link(b0, b"", 256),
        Link(b1, b0, 512),
        Link(b2, b1, 768),
        Link(name_of("tail", KEYS[3]), b2, 800),
        Link(name_of("state", KEYS[4]), b0, 300),
        Link(name_of("state", KEYS[1]), b1, 512),
        Link(name_of("state", KEYS[3]), b2, 800),
    ]
    assert [link.num_tokens for link in links_of(WHOLE)] == [256, 256, 256, 32, 300, 512, 800]


def test_a_log_without_kv_names_nothing():
    assert links_of(Manifest("a", "s", 1, 1, bytes(32), "m", "w", "1", 1, 1, (1, 2))) == []


def test_a_state_whose_blocks_are_gone_hangs_on_the_last_there_is():
    manifest = Manifest(
        "a", "s", 1, 1, bytes(32), "m", "w", "1", 1, 1, (), (), 256, (KEYS[0],), None,
        (Checkpoint(900, KEYS[1]),),
    )  # fmt: skip
    assert links_of(manifest)[-1] == Link(name_of("state", KEYS[1]), name_of("block", KEYS[0]), 900)


def test_the_parent_of_the_first_block_is_none():
    assert parent_name(bytes(32)) == b""
    assert parent_name(KEYS[0]) == name_of("block", KEYS[0])


@given(st.lists(st.floats(0, 10), min_size=7, max_size=7))
def test_a_parent_is_worth_at_least_its_best_child(values):
    links = links_of(WHOLE)
    before = dict(zip([link.name for link in links], values, strict=True))
    after = lifted(links, before)
    assert after.keys() == before.keys()
    for link in links:
        children = [after[child.name] for child in links if child.parent == link.name]
        assert after[link.name] == max([before[link.name], *children])


def test_what_a_manifest_is_counted_as_is_what_two_of_them_take():
    for manifest in (WHOLE, Manifest("a", "s", 1, 1, bytes(32), "m", "w", "1", 1, 1, (1, 2))):
        taken = -(-len(encode_manifest(manifest)) // 4096) * 4096
        assert 2 * taken <= manifest_bytes(manifest) <= 2 * taken + 8192
