"""Whatever happens to an object on its way, nothing wrong is used and nothing half is seen."""

from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kv_tier.format import CorruptFile
from kv_tier.names import kind_and_key
from kv_tier.open_object import open_file
from kv_tier.remote.bucket import Bucket
from kv_tier.remote.parcel import packed, unpacked
from kv_tier.remote.places import object_place, place_of
from kv_tier.remote.pull import newest, pull
from kv_tier.remote.push import push
from kv_tier.renamed import pairs_of
from tests.kv_tier.remote.homes import (
    FINGERPRINT,
    SIZES,
    TENANT,
    Home,
    as_pulled,
    payload_of,
    replace_byte,
)

LOG = range(100, 800)


@pytest.fixture
def parcel(homes):
    """(bytes on the way, unpack): of a tail."""
    one, other = homes
    said = one.say("s", LOG)
    push(one.remote, TENANT, "s")
    own = newest(other.remote, TENANT, "s")
    mine, theirs = next(
        pair
        for pair in pairs_of(own, as_pulled(said, one))
        if kind_and_key(pair[0].name)[0] == "tail"
    )
    shared = theirs
    with closing(open_file(one.tier.objects.path("tail", said.tail))) as opened:
        opened.verify()
        data = b"".join(bytes(part) for part in packed(opened, shared))
    size = SIZES.payload_bytes("tail", mine.num_tokens)

    def unpack(data):
        return unpacked(memoryview(data), TENANT, FINGERPRINT, size, shared=shared, own=mine)

    return data, unpack


def test_what_arrives_whole_is_what_was_sent(parcel):
    data, unpack = parcel
    source = unpack(data)
    assert bytes(source.parts[0]) == payload_of("tail", tuple(LOG)[:699])


def test_every_cut_is_found(parcel):
    data, unpack = parcel
    for length in range(len(data)):
        with pytest.raises(CorruptFile):
            unpack(data[:length])
    with pytest.raises(CorruptFile):
        unpack(data + b"\0")


def test_every_changed_byte_is_found(parcel):
    data, unpack = parcel
    for index in range(len(data)):
        with pytest.raises(CorruptFile):
            unpack(replace_byte(data, index, 1 << index % 8))


KINDS_OF_DAMAGE = ("gone", "cut", "flip", "longer", "another's")
damages = st.dictionaries(
    st.integers(0, 4), st.tuples(st.sampled_from(KINDS_OF_DAMAGE), st.floats(0, 0.9999)), min_size=1
)


@given(damages)
@settings(max_examples=25, deadline=None)
def test_any_damage_in_the_store_makes_the_hit_shorter_and_no_answer_wrong(damaged):
    """damaged: of the places, four objects and then the manifest, what becomes of them, and where
    in them."""
    with TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        bucket = Bucket(f"file://{folder}/shared")
        one, other = Home(Path(folder) / "one", bucket), Home(Path(folder) / "other", bucket)
        said = one.say("s", LOG)
        push(one.remote, TENANT, "s")
        places = sorted(found.name for found in bucket.list("objects"))
        places.append(place_of(TENANT, "s", (said.fence, said.generation)))
        contents = [bytes(bucket.get(place)) for place in places]
        for index, (what, where) in damaged.items():
            damage(bucket, places[index], what, where, contents)
        found = newest(other.remote, TENANT, "s")
        assert (found is None) == (4 in damaged)
        if found is not None:
            assert found == as_pulled(said, other)
            come = pull(other.remote, found, SIZES)
            assert other.holds(found) == come.fetched < 4
        one.say("s", range(100, 900))
        push(one.remote, TENANT, "s", trusts=False)
        again = newest(other.remote, TENANT, "s")
        for _ in range(2):  # what is damaged goes at first, and is sent then
            pull(other.remote, again, SIZES)
            push(one.remote, TENANT, "s", trusts=False)
        assert other.holds(again) == 5
        one.close()
        other.close()


def damage(bucket, place, what, where, contents):
    content = bytes(bucket.get(place))
    index = int(where * len(content))
    others = [other for other in contents if other != content]
    if what == "gone":
        return bucket.delete(place)
    changed = {
        "cut": content[:index],
        "flip": replace_byte(content, index, 1 + index % 255),
        "longer": content + bytes(1 + index),
        "another's": others[index % len(others)],
    }
    bucket.put(place, [changed[what]])


def test_an_object_that_arrives_damaged_is_taken_away_and_sent_anew(homes, bucket):
    one, other = homes
    said = one.say("s", LOG)
    push(one.remote, TENANT, "s")
    place = sorted(found.name for found in bucket.list("objects"))[0]
    bucket.put(place, [replace_byte(bytes(bucket.get(place)), 4500, 1)])
    found = newest(other.remote, TENANT, "s")
    assert pull(other.remote, found, SIZES).left >= 1
    assert place not in {found.name for found in bucket.list("objects")}
    assert other.remote.stats()["store_damaged"] == 1
    assert push(one.remote, TENANT, "s", trusts=False).sent == 1
    assert object_place(TENANT, b"\1" + bytes(32)) != place and said


def test_a_session_of_another_tenant_under_this_ones_name_is_passed_over(homes, bucket):
    one, other = homes
    theirs = one.say("s", LOG, tenant="evil")
    push(one.remote, "evil", "s")
    version = (theirs.fence, theirs.generation)
    bucket.put(place_of(TENANT, "s", version), [bucket.get(place_of("evil", "s", version))])
    assert newest(other.remote, TENANT, "s") is None
