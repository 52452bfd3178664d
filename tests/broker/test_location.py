"""The meaning of a server's URL, and that no output contains its password."""

from __future__ import annotations

import pickle
import traceback

import pytest

from oxcart.broker.location import Location, location_from_env
from oxcart.model.errors import ValidationError

GOOD = [
    ("redis://", Location("standalone", (("localhost", 6379),))),
    ("redis://example.com", Location("standalone", (("example.com", 6379),))),
    ("redis://example.com:7000/3", Location("standalone", (("example.com", 7000),), db=3)),
    ("redis://example.com:7000/3/", Location("standalone", (("example.com", 7000),), db=3)),
    ("redis://example.com?db=4", Location("standalone", (("example.com", 6379),), db=4)),
    ("  redis://h:1\n", Location("standalone", (("h", 1),))),
    ("REDIS://h:1", Location("standalone", (("h", 1),))),
    ("valkey://h:1", Location("standalone", (("h", 1),))),
    ("redis://[::1]:7000", Location("standalone", (("::1", 7000),))),
    ("redis://[fe80::1%25eth0]", Location("standalone", (("fe80::1%eth0", 6379),))),
    ("redis://:secret@h", Location("standalone", (("h", 6379),), password="secret")),
    ("redis://ada@h", Location("standalone", (("h", 6379),), username="ada")),
    (
        "redis://ada:s%40c%2Fr%3At@h",
        Location("standalone", (("h", 6379),), username="ada", password="s@c/r:t"),
    ),
    ("redis://ada:a@b@h", Location("standalone", (("h", 6379),), username="ada", password="a@b")),
    ("rediss://h:1", Location("standalone", (("h", 1),), tls=True)),
    ("valkeys://h:1", Location("standalone", (("h", 1),), tls=True)),
    (
        "rediss://h:1?tls_ca=/etc/ca.pem&tls_cert=/c.pem&tls_key=/k.pem&tls_verify=no",
        Location(
            "standalone",
            (("h", 1),),
            tls=True,
            tls_ca="/etc/ca.pem",
            tls_cert="/c.pem",
            tls_key="/k.pem",
            tls_verify=False,
        ),
    ),
    (
        "rediss://h:1?ssl_ca_certs=/etc/ca.pem&ssl_cert_reqs=none",
        Location("standalone", (("h", 1),), tls=True, tls_ca="/etc/ca.pem", tls_verify=False),
    ),
    ("unix:///run/valkey.sock", Location("unix", path="/run/valkey.sock")),
    ("unix:///run/my%20folder/ü.sock?db=2", Location("unix", path="/run/my folder/ü.sock", db=2)),
    ("unix://ada:pw@/run/v.sock", Location("unix", path="/run/v.sock", username="ada", password="pw")),
    ("redis+cluster://a:1,b:2,c", Location("cluster", (("a", 1), ("b", 2), ("c", 6379)))),
    ("rediss+cluster://a:1", Location("cluster", (("a", 1),), tls=True)),
    ("valkeys+cluster://:pw@a:1/0", Location("cluster", (("a", 1),), tls=True, password="pw")),
    ("redis+sentinel://a:1,b/main", Location("sentinel", (("a", 1), ("b", 26379)), sentinel_master="main")),
    (
        "rediss+sentinel://u:p@a:1/my%20main/5?sentinel_username=su&sentinel_password=sp",
        Location(
            "sentinel",
            (("a", 1),),
            db=5,
            username="u",
            password="p",
            tls=True,
            sentinel_master="my main",
            sentinel_username="su",
            sentinel_password="sp",
        ),
    ),
]

BAD = [
    ("", "url"),
    ("hunter2", "url"),
    ("hunter2://h", "url"),
    ("http://:hunter2@h", "url"),
    ("redis+other://:hunter2@h", "url"),
    ("redis://:hunter2", "url"),
    ("redis://h:0", "url"),
    ("redis://h:65536", "url"),
    ("redis://h:hunter2", "url"),
    ("redis://:hun#ter2@a,b", "url"),
    ("redis://:hunter2@[::1", "url"),
    ("redis://:hunter2@h/one", "db"),
    ("redis://:hunter2@h/-1", "db"),
    ("redis://:hunter2@h/²", "db"),
    ("redis://:hunter2/x@h/0", "db"),
    ("redis://:hunter2@h/0?colour=blue", "url"),
    ("redis://:hunter2@h/0?tls_ca=/x", "url"),
    ("redis://:hunter2@h/0?broken", "url"),
    ("redis://:hun ter2@h", "url"),
    ("redis://:hunter2@h\n\x00", "url"),
    ("rediss://:hunter2@h?tls_verify=perhaps", "tls_verify"),
    ("rediss://:hunter2@h?tls_key=/k", "tls_cert"),
    ("unix://run/hunter2.sock", "url"),
    ("unix:///", "url"),
    ("unix:///a%00b", "url"),
    ("unix:///" + "a" * 120, "path"),
    ("redis+cluster://:hunter2@a:1/2", "db"),
    ("redis+sentinel://:hunter2@a:1", "url"),
    ("redis+sentinel://:hunter2@a:1/main/x", "db"),
]


@pytest.mark.parametrize(("url", "expected"), GOOD)
def test_a_good_url_is_read(url: str, expected: Location) -> None:
    assert Location.parse(url) == expected


@pytest.mark.parametrize(("url", "expected"), GOOD)
def test_a_location_s_own_url_leads_back_to_it(url: str, expected: Location) -> None:
    assert Location.parse(expected.url) == expected


@pytest.mark.parametrize(("url", "field"), BAD)
def test_a_bad_url_is_refused_without_being_repeated(url: str, field: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Location.parse(url)
    assert caught.value.field == field
    shown = "".join(traceback.format_exception(caught.value)) + repr(caught.value) + repr(caught.value.args)
    assert "ter2" not in shown


def test_something_that_is_not_text_is_refused() -> None:
    with pytest.raises(ValidationError):
        Location.parse(None)  # type: ignore[arg-type]


def test_a_password_does_not_show() -> None:
    location = Location.parse("redis+sentinel://u:hunter2@h/main?sentinel_password=hunter3")
    for shown in (repr(location), str(location), f"{location}", f"{[location]}"):
        assert "hunter" not in shown
    assert str(location) == "redis+sentinel://u:***@h:26379/main?sentinel_password=***"


def test_a_location_can_be_a_key_and_can_travel() -> None:
    location = Location.parse("redis://:pw@h")
    assert {location: 1}[Location.parse("redis://:pw@h")] == 1
    assert pickle.loads(pickle.dumps(location)) == location


@pytest.mark.parametrize("value", [None, "", "  "])
def test_without_a_url_in_the_environment_there_is_no_location(value: str | None) -> None:
    assert location_from_env({} if value is None else {"OXCART_URL": value}) is None


def test_the_environment_names_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OXCART_URL", "redis://h:1")
    assert location_from_env() == Location("standalone", (("h", 1),))
