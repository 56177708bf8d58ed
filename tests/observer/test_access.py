"""Who may see the page, and who may give orders."""

from __future__ import annotations

import pytest

from elasticrun.observer import access
from elasticrun.observer.access import Door


def test_only_the_token_is_taken() -> None:
    door = Door("secret", is_open=False)
    assert door.takes("secret", "a", 0.0)
    assert not door.takes("secreT", "a", 0.0)
    assert not door.takes("\udc80", "a", 0.0)
    assert not Door(None, is_open=True).takes("", "a", 0.0)


def test_an_address_that_guesses_waits_and_others_do_not() -> None:
    door = Door("secret", is_open=False)
    for _ in range(access.TRIES):
        assert not door.is_throttled("a", 0.0)
        door.takes("wrong", "a", 0.0)
    assert door.is_throttled("a", 0.0)
    assert not door.is_throttled("b", 0.0)
    assert not door.is_throttled("a", access.SPAN)


def test_many_addresses_together_wait_too_and_are_not_remembered_for_ever() -> None:
    door = Door("secret", is_open=False)
    for number in range(access.ALL_TRIES):
        door.takes("wrong", f"a{number}", 0.0)
    assert door.is_throttled("another", 0.0)
    for number in range(2 * access.MOST_ADDRESSES):
        door.takes("wrong", f"b{number}", 1.0)
    assert len(door._failures) == access.MOST_ADDRESSES


def test_sessions_end() -> None:
    door = Door("secret", is_open=False)
    first, second = door.open_session(0.0), door.open_session(0.0)
    assert first != second
    assert door.knows(first, 1.0)
    assert not door.knows(first, access.LASTS)
    door.close_session(first)
    assert not door.knows(first, 1.0)
    assert door.knows(second, 1.0)
    for _ in range(access.MOST_SESSIONS):
        door.open_session(1.0)
    assert not door.knows(second, 1.0)


@pytest.mark.parametrize(
    ("header", "is_ours"),
    [
        ("localhost:8080", True),
        ("127.0.0.1", True),
        ("[::1]:8080", True),
        ("10.1.2.3:80", True),
        ("Node0:8080", True),
        ("node0.evil.example", False),
        ("evil.example:8080", False),
        ("127.0.0.1.evil.example", False),
        ("", False),
    ],
)
def test_a_name_that_could_be_rebound_is_refused(header: str, is_ours: bool) -> None:
    assert access.is_our_name(access.host_name(header), frozenset({"node0"})) == is_ours


@pytest.mark.parametrize(
    ("origin", "site", "is_own"),
    [
        (None, None, True),
        ("http://a:1", "same-origin", True),
        ("http://a:2", None, False),
        ("https://a:1", None, False),
        ("null", None, False),
        (None, "cross-site", False),
        ("http://a:1", "same-site", False),
    ],
)
def test_requests_of_other_sites_are_told_apart(origin: str | None, site: str | None, is_own: bool) -> None:
    assert access.is_own_origin(origin, site, "a:1", "http") == is_own


@pytest.mark.parametrize(
    ("host", "is_it"),
    [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("a", False)],
)
def test_loopback(host: str, is_it: bool) -> None:
    assert access.is_loopback(host) == is_it
