"""A session goes to the store once and comes out the same, or not at all."""

import pytest

from kv_tier.fork import NoSession
from kv_tier.remote import push as push_module
from kv_tier.remote.bucket import Bucket, NoStore, StoreError
from kv_tier.remote.places import OBJECT
from kv_tier.remote.pull import newest, pull
from kv_tier.remote.push import Superseded, push
from kv_tier.remote.quota import OverQuota
from tests.kv_tier.remote.homes import SIZES, TENANT, Home, as_pulled, replace_byte

LOG = range(100, 800)  # two blocks, a tail, a state


def test_a_session_comes_out_as_it_went_in_under_the_names_of_the_other_home(homes):
    one, other = homes
    said = one.say("s", LOG)
    done = push(one.remote, TENANT, "s")
    assert (done.is_new, done.sent, done.known, done.left) == (True, 4, 0, 0)
    found = newest(other.remote, TENANT, "s")
    assert found == as_pulled(said, other) and found.blocks != said.blocks
    assert other.holds(found) == 0
    come = pull(other.remote, found, SIZES)
    assert (come.fetched, come.left, come.num_bytes) == (4, 0, done.num_bytes)
    assert other.holds(found) == 4


def test_nothing_is_sent_twice(homes, bucket):
    one, other = homes
    one.say("s", LOG)
    push(one.remote, TENANT, "s")
    assert not push(one.remote, TENANT, "s").is_new
    one.say("s", range(100, 1100))  # a third block, another tail and state
    assert push(one.remote, TENANT, "s").sent == 3
    pull(other.remote, newest(other.remote, TENANT, "s"), SIZES)
    other.say("t", range(100, 1200))  # shares three blocks, by keys of its own
    done = push(other.remote, TENANT, "t")
    assert (done.sent, done.known) == (3, 3)
    sent = [name for name in bucket.names("put") if name.startswith("objects")]
    assert len(sent) == len(set(sent)) == 10


def test_what_is_here_is_not_fetched(homes, bucket):
    one, other = homes
    one.say("s", LOG)
    push(one.remote, TENANT, "s")
    other.say("t", LOG[:600])
    bucket.calls.clear()
    pull(other.remote, newest(other.remote, TENANT, "s"), SIZES)
    assert len([name for name in bucket.names("get") if name.startswith("objects")]) == 2


def test_only_what_helps_a_prompt_is_fetched(homes):
    one, other = homes
    one.say("s", LOG)
    push(one.remote, TENANT, "s")
    assert pull(other.remote, newest(other.remote, TENANT, "s"), SIZES, end=300).fetched == 1


def test_tenants_share_no_name_and_no_byte(homes):
    one, other = homes
    one.say("s", LOG, tenant="acme")
    one.say("s", LOG, tenant="evil")
    push(one.remote, "acme", "s")
    assert push(one.remote, "evil", "s").known == 0
    names = {found.name for found in one.remote.bucket.list("objects")}
    keys = [OBJECT.fullmatch(name)[2] for name in names]
    assert len(names) == len(set(keys)) + 2 == 8  # a tail and its state have one key
    assert newest(other.remote, "third", "s") is None
    theirs = newest(other.remote, "evil", "s")
    assert not set(theirs.blocks) & set(newest(other.remote, "acme", "s").blocks)


def test_names_in_the_store_tell_nothing_without_its_salt(homes, tmp_path):
    one, _ = homes
    one.say("s", LOG)
    push(one.remote, TENANT, "s")
    elsewhere = Home(tmp_path / "third", Bucket(f"file://{tmp_path}/another"))
    elsewhere.say("s", LOG)
    push(elsewhere.remote, TENANT, "s")
    names = {found.name for found in one.remote.bucket.list("objects")}
    others = {found.name for found in elsewhere.remote.bucket.list("objects")}
    assert len(names) == len(others) == 4 and not names & others
    elsewhere.close()


def test_a_node_that_comes_late_changes_nothing(homes):
    one, other = homes
    one.say("s", LOG, generation=9)
    later = other.say("s", range(500), fence=7)
    push(other.remote, TENANT, "s")
    assert not push(one.remote, TENANT, "s").is_new
    assert newest(one.remote, TENANT, "s").token_ids == later.token_ids


def test_only_the_last_manifest_of_a_session_stays(homes, bucket):
    one, _ = homes
    for size in (300, 400, 700):
        one.say("s", range(size))
        push(one.remote, TENANT, "s")
    assert len(list(bucket.list("sessions"))) == 1


def test_a_manifest_never_comes_before_its_objects(homes, bucket):
    one, other = homes
    one.say("s", LOG)
    bucket.fails = {"put"}
    with pytest.raises(StoreError):
        push(one.remote, TENANT, "s")
    bucket.fails = set()
    assert newest(other.remote, TENANT, "s") is None
    push(one.remote, TENANT, "s")
    puts = [name for name in bucket.names("put") if name != "salt"]
    assert puts[-1].startswith("sessions") and not any("sessions" in n for n in puts[:-1])


@pytest.mark.parametrize("what", ["drop", "say"])
def test_who_changes_while_it_is_sent_is_not_there_as_it_was(homes, bucket, what):
    one, other = homes
    one.say("s", LOG)
    changes = {
        "drop": lambda: one.tier.drop(TENANT, "s"),
        "say": lambda: one.say("s", range(900)),
    }
    with pytest.raises(Superseded):
        push(one.remote, TENANT, "s", progress=lambda done, of: changes[what]())
    assert newest(other.remote, TENANT, "s") is None


def test_what_is_gone_or_damaged_here_is_not_sent(homes):
    one, other = homes
    said = one.say("s", LOG)
    first, second = (one.tier.objects.path("block", key) for key in said.blocks)
    first.unlink()
    second.write_bytes(replace_byte(second.read_bytes(), 5000, 1))
    done = push(one.remote, TENANT, "s")
    assert (done.sent, done.left) == (2, 2)
    pulled = pull(other.remote, newest(other.remote, TENANT, "s"), SIZES)
    assert pulled.left >= 2


def test_a_push_that_trusts_nothing_sends_again_what_the_store_lost(homes, bucket):
    one, other = homes
    one.say("s", LOG)
    push(one.remote, TENANT, "s")
    lost = next(found.name for found in bucket.list("objects"))
    bucket.delete(lost)
    assert push(one.remote, TENANT, "s", trusts=False).sent == 1
    found = newest(other.remote, TENANT, "s")
    assert pull(other.remote, found, SIZES).fetched == 4


def test_an_old_object_that_nobody_names_is_sent_again(homes):
    """A collector may be about to take it away."""
    one, other = homes
    one.say("s", LOG)
    push(one.remote, TENANT, "s")
    other.say("t", LOG)
    other.now_ms += push_module.FRESH_MS + 10**12
    assert push(other.remote, TENANT, "t").sent == 4


def test_a_session_that_is_not_here_cannot_be_sent(homes):
    with pytest.raises(NoSession):
        push(homes[0].remote, TENANT, "s")


def test_kv_of_other_weights_is_not_fetched(homes):
    one, other = homes
    one.say("s", LOG)
    push(one.remote, TENANT, "s")
    sizes = SIZES.__class__(b"x" * 32, SIZES.block_bytes, SIZES.token_bytes, SIZES.state_bytes)
    assert pull(other.remote, newest(other.remote, TENANT, "s"), sizes).fetched == 0


def test_a_budget_that_is_used_up_makes_the_hit_shorter(homes, tmp_path, bucket):
    from kv_tier.budget import TierLimits

    one, _ = homes
    one.say("s", LOG)
    push(one.remote, TENANT, "s")
    small = Home(tmp_path / "small", bucket)
    limits = TierLimits(quota_bytes=30_000)
    object.__setattr__(small.tier._budget, "limits", limits)
    found = newest(small.remote, TENANT, "s")
    pull(small.remote, found, SIZES)
    assert 0 < small.holds(found) < 4
    small.close()


def test_a_tenant_has_a_limit_there(tmp_path, bucket):
    home = Home(tmp_path / "one", bucket, tenant_bytes=50_000)
    home.say("s", LOG)
    with pytest.raises(OverQuota, match="'acme' has 0 bytes of at most 50000"):
        push(home.remote, TENANT, "s")
    home.close()


def test_sending_is_slowed_to_the_rate_that_is_set(tmp_path, bucket):
    rests = []
    home = Home(tmp_path / "one", bucket, bytes_per_s=1000.0, rest=rests.append)
    home.say("s", LOG)
    done = push(home.remote, TENANT, "s")
    assert sum(rests) > 0.9 * done.num_bytes / 1000
    home.close()


def test_what_happened_is_counted(homes):
    one, other = homes
    one.say("s", LOG)
    done = push(one.remote, TENANT, "s")
    pull(other.remote, newest(other.remote, TENANT, "s"), SIZES)
    sent, fetched = one.remote.stats(), other.remote.stats()
    assert (sent["store_sent_objects"], sent["store_sent_bytes"]) == (4, done.num_bytes)
    assert fetched["store_fetched_objects"] == 4 and fetched["store_fetched_s"] > 0


@pytest.mark.parametrize(
    "url, says",
    [
        ("ftp://host/x", "ftp://host"),
        ("s3://", "s3://"),
        ("az://container/x", "Account must be specified"),
        ("file:///proc/nothing/here", "file://"),
    ],
)
def test_a_url_that_cannot_be_used_is_refused_in_words(url, says):
    with pytest.raises(NoStore, match=says):
        Bucket(url)
