"""Where webhooks may go: no spelling of a private address, and only the list opens a door."""

import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.address import Forbidden, check_url, is_public, parse_networks, parse_url, resolve

NOTHING = ()
LOOPBACK = parse_networks("127.0.0.0/8, ::1")
PUBLIC = "93.184.216.34"


def answers(*addresses):
    """A resolver that gives these addresses, and counts."""

    def lookup(host, port, **_):
        lookup.count += 1
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (a, port)) for a in addresses]

    lookup.count = 0
    return lookup


@pytest.mark.parametrize(
    "url",
    [
        "https://example.com/hook",
        "https://example.com",
        "https://EXAMPLE.com:443/a?b=c#d",
        "https://example.com./",
        "https://xn--bcher-kva.example/",
        "https://my_host.example/",
        "https://8.8.8.8/",
        "https://134744072/",  # 8.8.8.8
        "https://[2606:4700::1111]/hook",
        "https://1.example.com/",
    ],
)
def test_public_https_may_be_reached(url):
    assert check_url(url, NOTHING) is None


@pytest.mark.parametrize(
    ("url", "word"),
    [
        ("http://example.com/hook", "http is only for"),
        ("ftp://example.com/", "https://"),
        ("file:///etc/passwd", "https://"),
        ("//example.com/", "https://"),
        ("example.com/hook", "https://"),
        ("", "printable"),
        ("https://", "host and port"),
        ("https:///hook", "host and port"),
        ("https://example.com:80/", "port must be 443"),
        ("https://example.com:22/", "port must be 443"),
        ("https://example.com:0/", "host and port"),
        ("https://example.com:/", "host and port"),
        ("https://example.com:70000/", "host and port"),
        ("https://example.com:44a/", "host and port"),
        ("https://8.8.8.8:8443/", "port must be 443"),
        ("http://8.8.8.8/", "http is only for"),
        ("https://user@example.com/", "user name"),
        ("https://user:secret@example.com/", "user name"),
        ("https://@example.com/", "user name"),
        ("https://example.com\\@127.0.0.1/", "backslash"),
        ("https://exa mple.com/", "blank"),
        ("https://example.com/a\nb", "blank"),
        (" https://example.com/", "blank"),
        ("https://bücher.example/", "ASCII"),
        ("https://１２７.0.0.1/", "ASCII"),
        ("https://%31%32%37.0.0.1/", "host and port"),
        ("https://-a.example/", "valid name"),
        ("https://a..example/", "valid name"),
        ("https://[fe80::1%25eth0]/", "host"),
        ("https://[::1]x/", "host and port"),
        ("https://x[::1]/", "host and port"),
        ("https://[::1/", "host and port"),
        ("https://[:::1]/", "host"),
        ("https://1.2.3.4.5/", "IPv4"),
        ("https://example.0x/", "IPv4"),
        ("https://256.1.1.1/", "IPv4"),
        ("https://example.com/" + "a" * 2048, "longer"),
    ],
)
def test_what_is_no_plain_https_url_is_refused_in_words(url, word):
    assert word in check_url(url, NOTHING)


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "127.0.0.1.",
        "127.1",
        "2130706433",
        "0x7f.1",
        "0x7f000001",
        "0X7F.0.0.1",
        "017700000001",
        "0177.0.0.1",
        "0",
        "0.0.0.0",
        "10.1.2.3",
        "100.64.1.1",
        "168.63.129.16",
        "169.254.169.254",
        "172.16.0.1",
        "172.31.255.255",
        "192.0.0.192",
        "192.0.2.1",
        "192.88.99.1",
        "192.168.1.1",
        "198.18.0.1",
        "198.51.100.1",
        "203.0.113.9",
        "224.0.0.1",
        "240.0.0.1",
        "255.255.255.255",
        "[::]",
        "[::1]",
        "[0:0:0:0:0:0:0:1]",
        "[::127.0.0.1]",
        "[::ffff:127.0.0.1]",
        "[::ffff:169.254.169.254]",
        "[::ffff:0:127.0.0.1]",
        "[64:ff9b::7f00:1]",
        "[64:ff9b::a9fe:a9fe]",
        "[64:ff9b:1::7f00:1]",
        "[100::1]",
        "[2001::1]",
        "[2001:2::1]",
        "[2001:db8::1]",
        "[2002:7f00:1::]",
        "[3fff::1]",
        "[fc00::1]",
        "[fd00:ec2::254]",
        "[fe80::1]",
        "[fec0::1]",
        "[ff02::1]",
    ],
)
def test_no_spelling_of_a_private_address_is_let_out(host):
    assert "is not public" in check_url(f"https://{host}/", NOTHING)
    assert "is not public" in check_url(f"http://{host}/", NOTHING)


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST", "localhost.", "a.localhost", "localhost.localdomain"]
)
def test_names_of_this_machine_are_refused_unless_loopback_is_allowed(host):
    assert "this machine" in check_url(f"https://{host}/", NOTHING)
    assert "this machine" in check_url(f"https://{host}/", parse_networks("10.0.0.0/8"))
    assert check_url(f"http://{host}:9000/hook", LOOPBACK) is None


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:9000/hook",
        "https://127.0.0.1:9000/hook",
        "http://127.1/",
        "http://[::1]:9000/",
        "http://[::ffff:127.0.0.1]:9000/",
        "https://receiver.example:8443/",  # the port is judged again with the name's addresses
    ],
)
def test_the_list_opens_any_port_and_http(url):
    assert check_url(url, LOOPBACK) is None


@pytest.mark.parametrize(
    "url",
    ["http://10.0.0.1/", "http://8.8.8.8/", "http://example.com/", "https://[64:ff9b::7f00:1]/"],
)
def test_the_list_opens_nothing_else(url):
    assert check_url(url, LOOPBACK) is not None


def test_networks_are_read_from_a_comma_separated_list():
    assert [str(n) for n in parse_networks(" 127.0.0.0/8,::1 , 10.0.0.1,")] == [
        "127.0.0.0/8",
        "::1/128",
        "10.0.0.1/32",
    ]
    assert parse_networks("") == ()


@pytest.mark.parametrize("text", ["localhost", "10.0.0.1/8", "10.0.0.0/33", "1.2.3.4/x"])
def test_a_wrong_network_is_named(text):
    with pytest.raises(ValueError, match=r"webhook_allow: '" + text.split("/")[0]):
        parse_networks(f"127.0.0.0/8,{text}")


def test_a_name_is_looked_up_once_and_its_address_returned():
    lookup = answers(PUBLIC, PUBLIC)
    assert resolve(parse_url("https://example.com/"), NOTHING, lookup) == [PUBLIC]
    assert lookup.count == 1


@pytest.mark.parametrize(
    "found",
    [("127.0.0.1",), (PUBLIC, "127.0.0.1"), (PUBLIC, "fe80::1%eth0"), (PUBLIC, "::ffff:10.0.0.1")],
)
def test_one_private_address_among_a_names_addresses_refuses_it(found):
    with pytest.raises(Forbidden, match="is not public"):
        resolve(parse_url("https://example.com/"), NOTHING, answers(*found))


def test_another_port_needs_every_address_allowed():
    target = parse_url("https://receiver.example:8443/")
    assert resolve(target, LOOPBACK, answers("127.0.0.9")) == ["127.0.0.9"]
    with pytest.raises(Forbidden, match="port must be 443"):
        resolve(target, LOOPBACK, answers("127.0.0.9", PUBLIC))


def test_a_name_cannot_be_reached_by_http_even_inside_the_list():
    with pytest.raises(Forbidden, match="http is only for"):
        resolve(parse_url("http://receiver.example/"), LOOPBACK, answers("127.0.0.1"))


@pytest.mark.parametrize(
    ("url", "allow", "expected"),
    [
        ("http://127.1:80/", "127.0.0.0/8", ["127.0.0.1"]),
        ("http://localhost:80/", "127.0.0.0/8", ["127.0.0.1"]),
        ("http://localhost:80/", "::1", ["::1"]),
        ("https://8.8.8.8/", "", ["8.8.8.8"]),
    ],
)
def test_addresses_and_local_names_need_no_lookup(url, allow, expected):
    lookup = answers("10.0.0.1")
    assert resolve(parse_url(url), parse_networks(allow), lookup) == expected
    assert lookup.count == 0


def test_a_name_without_addresses_is_no_refusal():
    """It may have some tomorrow: the attempt is repeated."""
    with pytest.raises(OSError, match="has no address"):
        resolve(parse_url("https://example.com/"), NOTHING, answers())


def test_the_endpoint_groups_what_one_receiver_answers():
    assert parse_url("https://A.example/x").endpoint == "a.example:443"
    assert parse_url("http://[::1]:9000/x?y").endpoint == "[::1]:9000"
    assert parse_url("http://[::1]:9000/x?y").path == "/x?y"


@given(
    st.text()
    | st.text(st.sampled_from("htps:/@[]%.0123456789abcdefx?#&-_~\\ "), max_size=40)
    | st.text(max_size=20).map(lambda text: f"https://{text}/")
    | st.text(st.sampled_from(":.0123456789abcdefx[]%"), max_size=30).map(lambda t: f"http://{t}/")
)
def test_no_url_breaks_the_judge(url):
    """Whatever a client writes gets a sentence, or goes where any client may go."""
    reason = check_url(url, NOTHING)
    if reason is None:
        target = parse_url(url)
        assert (target.scheme, target.port) == ("https", 443)
        assert target.address is None or is_public(target.address)
    else:
        assert "\n" not in reason


@given(st.ip_addresses(v=4))
def test_a_public_address_is_global_to_python_too(address):
    """Ours is the stricter of the two tables."""
    assert address.is_global or not is_public(address)


@given(st.ip_addresses(v=4))
def test_an_address_is_judged_alike_in_every_spelling(address):
    number = int(address)
    spellings = [str(address), str(number), hex(number), f"0{number:o}", f"[::ffff:{address}]"]
    reasons = {check_url(f"https://{spelling}/", NOTHING) for spelling in spellings}
    assert len(reasons) == 1
