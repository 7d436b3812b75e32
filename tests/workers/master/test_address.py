"""LOCKSTEP_REDIS_URL: what each form says, what is refused, and that no password is told."""

import pytest
from pydantic import ValidationError

from workers.master.address import BadUrl, parse, passwords
from workers.settings import Settings, complaints, shown_url


@pytest.mark.parametrize(
    ("url", "kind", "places", "service", "options"),
    [
        ("redis://", "one", [("localhost", 6379)], "", {}),
        ("redis://h", "one", [("h", 6379)], "", {}),
        ("redis://u:p%40@h:7/3", "one", [("h", 7)], "",
         {"username": "u", "password": "p@", "db": 3}),
        ("redis://[::1]:7/0?health_check_interval=9", "one", [("::1", 7)], "",
         {"db": 0, "health_check_interval": 9}),
        ("unix:///run/redis.sock?db=2", "unix", [], "", {"path": "/run/redis.sock", "db": 2}),
        ("redis+cluster://a", "cluster", [("a", 6379)], "", {}),
        ("redis+cluster://:p@a:1,b:2,[::1]:3/0", "cluster", [("a", 1), ("b", 2), ("::1", 3)], "",
         {"password": "p", "db": 0}),
        ("redis+sentinel://a,b:2/main", "sentinel", [("a", 26379), ("b", 2)], "main", {}),
        ("redis+sentinel://u:p@a/my%20main/4", "sentinel", [("a", 26379)], "my main",
         {"username": "u", "password": "p", "db": 4}),
    ],
)  # fmt: skip
def test_what_a_url_says(url, kind, places, service, options):
    told = parse(url)
    assert (told.kind, list(told.places), told.service) == (kind, places, service)
    assert (told.options, told.is_tls) == (options, False)


def test_tls_is_for_sentinels_too_and_their_password_is_theirs():
    url = "rediss+sentinel://:store@a/m?sentinel_password=theirs&sentinel_username=w&ssl_ca_certs=f"
    told = parse(url)
    assert told.is_tls and told.options == {"password": "store", "ssl_ca_certs": "f"}
    assert told.sentinel == {"password": "theirs", "username": "w", "ssl_ca_certs": "f"}
    assert passwords(url) == ["store", "theirs"]
    assert shown_url(url) == "rediss+sentinel://a/m"


@pytest.mark.parametrize(
    "url",
    [
        "http://h/", "redis+one://h", "redis+ring://h", "cluster://h", "h:6379", "",
        "redis://h:0/", "redis://h:x/", "redis://h:99999/", "redis://a,b/0", "redis://[::1/0",
        "redis+cluster://a/1", "redis+cluster://a:1,b:0", "redis+sentinel://a",
        "redis+sentinel://a/", "redis://h?socket_timeout=soon",
    ],
)  # fmt: skip
def test_a_url_that_says_no_store_is_refused(url):
    with pytest.raises(BadUrl):
        parse(url)


@pytest.mark.parametrize(
    "url",
    ["redis://user:hun#ter2@h:6379/0", "redis+cluster://:hunter2@a:x", "redis://:hun／ter@h/0"],
)
def test_a_refused_url_keeps_its_password(url):
    with pytest.raises(BadUrl) as caught:
        parse(url)
    assert "hun" not in str(caught.value)


@pytest.mark.parametrize("prefix", ["lockstep", "{lockstep", "lockstep}", "{}lockstep", "{}{a}"])
def test_the_keys_of_a_cluster_need_a_tag(prefix):
    """Redis hashes what is between the first { and the first } behind it, if there is any."""
    with pytest.raises(ValidationError) as caught:
        Settings(redis_url="redis+cluster://h", key_prefix=prefix)
    (said,) = complaints(caught.value)
    assert said.startswith("LOCKSTEP_KEY_PREFIX is set to ") and "{lockstep}" in said
    assert Settings(redis_url="redis+sentinel://h/m", key_prefix=prefix)


@pytest.mark.parametrize("prefix", ["{lockstep}", "my-{a}", "{a}b"])
def test_a_tag_may_stand_anywhere(prefix):
    assert Settings(redis_url="redis+cluster://h", key_prefix=prefix).key_prefix == prefix


def test_the_certificates_of_a_setting_go_into_a_url_with_options():
    told = Settings(redis_url="rediss+sentinel://h/m?sentinel_password=p", redis_ca="/ca.pem")
    assert parse(told.url).options == {"ssl_ca_certs": "/ca.pem"}
    assert "p" in told.secrets
