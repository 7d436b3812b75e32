"""What nobody needs goes from the store, and nothing that somebody needs or is about to name."""

from contextlib import suppress

import pytest

from kv_tier.format import NewerVersion, with_sum
from kv_tier.remote.places import place_of
from kv_tier.remote.pull import newest, pull
from kv_tier.remote.push import Superseded, push
from kv_tier.remote.sweep import KEEP_MS, forget, sweep
from tests.kv_tier.remote.homes import SIZES, TENANT

LOG = range(100, 800)
YEARS_MS = 10**12  # later than whatever the folder's clock says now


def places(bucket, folder):
    return {found.name for found in bucket.list(folder)}


def test_what_no_manifest_names_goes_once_it_is_old(homes, bucket):
    one, _ = homes
    one.say("s", LOG)
    push(one.remote, TENANT, "s")
    one.now_ms = max(found.changed_ms for found in bucket.list("objects"))
    forget(one.remote, TENANT, "s")
    assert places(bucket, "sessions") == set()
    assert sweep(one.remote).objects == 0  # somebody may be about to name it
    one.now_ms += KEEP_MS + 1
    swept = sweep(one.remote)
    assert (swept.objects, places(bucket, "objects")) == (4, set())


def test_what_a_manifest_names_stays_however_old(homes, bucket):
    one, other = homes
    one.say("s", LOG)
    push(one.remote, TENANT, "s")
    other.say("t", LOG[:600])
    push(other.remote, TENANT, "t")
    forget(one.remote, TENANT, "s")
    one.now_ms += YEARS_MS
    assert sweep(one.remote).objects == 2  # the tail and the state of "s" alone
    assert pull(one.remote, newest(one.remote, TENANT, "t"), SIZES).left == 0


def test_sessions_that_nobody_used_for_their_time_go(homes, bucket):
    one, _ = homes
    one.say("s", LOG)
    push(one.remote, TENANT, "s")
    one.now_ms += YEARS_MS
    assert (sweep(one.remote, ttl_ms=10 * YEARS_MS).sessions, len(places(bucket, "s"))) == (0, 0)
    swept = sweep(one.remote, ttl_ms=1000)
    assert (swept.sessions, swept.objects) == (1, 4)


def test_a_manifest_of_a_deleted_session_goes(homes, bucket):
    """Its owner could not reach the store when it was deleted."""
    one, _ = homes
    said = one.say("s", LOG)
    push(one.remote, TENANT, "s")
    asked = []

    def is_deleted(*session):
        asked.append(session)
        return True

    assert sweep(one.remote, is_deleted=is_deleted).sessions == 1
    assert asked == [(TENANT, "s", said.fence)] and places(bucket, "sessions") == set()


def test_a_list_that_lags_takes_no_new_manifests_objects(homes, bucket):
    """It still shows the manifest that was followed by another since."""
    one, _ = homes
    one.say("s", LOG)
    push(one.remote, TENANT, "s")
    one.now_ms += YEARS_MS
    marked = []
    get = bucket.get

    def get_late(name):
        if name.startswith("sessions") and not marked:
            marked.append(name)
            one.say("s", range(100, 900))
            push(one.remote, TENANT, "s")
        return get(name)

    bucket.get = get_late
    sweep(one.remote)
    bucket.get = get
    assert pull(homes[1].remote, newest(homes[1].remote, TENANT, "s"), SIZES).left == 0


def test_who_does_not_know_what_a_manifest_names_takes_nothing_away(homes, bucket):
    one, _ = homes
    said = one.say("s", LOG)
    push(one.remote, TENANT, "s")
    place = place_of(TENANT, "s", (said.fence, said.generation))
    data = bytes(bucket.get(place))[:-16]
    bucket.put(place, [with_sum(data[:8] + b"\x63\0" + data[10:])])
    one.now_ms += YEARS_MS
    with pytest.raises(NewerVersion):
        sweep(one.remote)
    assert len(places(bucket, "objects")) == 4


def test_what_is_left_is_counted_by_tenant(homes):
    one, _ = homes
    for tenant in ("acme", "evil"):
        one.say("s", LOG, tenant=tenant)
        push(one.remote, tenant, "s")
    kept = dict(sweep(one.remote).kept_bytes)
    assert kept["acme"] == kept["evil"] > 30_000


def test_a_sweep_beside_pushes_costs_nobody_an_object(homes, bucket):
    one, other = homes
    for turn in range(3):
        one.say(f"s{turn}", range(100, 400 + 300 * turn))
        push(one.remote, TENANT, f"s{turn}")
    one.now_ms += YEARS_MS
    for turn in range(3):
        one.say(f"s{turn}", range(100, 500 + 300 * turn))

        def swept(done, of):
            sweep(other.remote)

        with suppress(Superseded):
            push(one.remote, TENANT, f"s{turn}", progress=swept)
        found = newest(other.remote, TENANT, f"s{turn}")
        assert pull(other.remote, found, SIZES).left == 0
