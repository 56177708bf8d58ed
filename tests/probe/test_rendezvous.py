"""Who is let in at the door, who is turned away, and what rank 0 decides."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from elasticrun.probe.rendezvous import Door, Group, Meeting, best, lead, visit
from elasticrun.probe.sockets import ProbeError, listen
from tests.probe.harness import free_port

CHECK = 7
LONG = 30.0
SHORT = 0.3


def no_store(address: str, deadline: float) -> tuple[Any, int]:
    raise AssertionError("nobody asked for torch")


class Place:
    """A door, and threads that go to it."""

    def __init__(self) -> None:
        self.port = free_port()
        self.door = Door(self.port, CHECK)
        self._threads = ThreadPoolExecutor(4)
        self._opened: list[Meeting | socket.socket] = []

    def group(self, names: str, rank: int, slot: int = 0) -> Group:
        return Group(slot, rank, tuple(names), "127.0.0.1", self.port)

    def lead(self, names: str, patience: float = LONG, slot: int = 0, able: str = "tcp") -> Meeting:
        meeting = lead(self.group(names, 0, slot), self.door, able.split(), no_store, self.until(patience))
        self._opened.append(meeting)
        return meeting

    def visit(
        self,
        names: str,
        rank: int,
        slot: int = 0,
        check: int = CHECK,
        patience: float = LONG,
        problem: str = "",
    ) -> Future[Meeting]:
        until = self.until(patience)
        return self._threads.submit(
            visit, self.group(names, rank, slot), check, ("tcp", "gloo"), until, until, problem
        )

    def say(self, data: bytes) -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", self.port), LONG)
        connection.sendall(data)
        self._opened.append(connection)
        return connection

    @staticmethod
    def until(patience: float) -> float:
        return time.monotonic() + patience

    def close(self) -> None:
        self._threads.shutdown()
        self.door.close()
        for opened in self._opened:
            opened.close()


@pytest.fixture
def place() -> Iterator[Place]:
    made = Place()
    yield made
    made.close()


def test_all_know_where_all_are(place: Place) -> None:
    comings = [place.visit("abc", rank) for rank in (1, 2)]
    host = place.lead("abc")
    guests = [coming.result(LONG) for coming in comings]
    ports = [meeting.ring.getsockname()[1] for meeting in (host, *guests)]
    for meeting in guests:
        assert meeting.places == [("127.0.0.1", port) for port in ports]
        assert (meeting.transport, meeting.host, meeting.address) == ("tcp", "127.0.0.1", "127.0.0.1")
        meeting.close()
    assert [port for _, port in host.places] == ports


def test_a_guest_of_a_later_slot_is_kept(place: Place) -> None:
    early = place.visit("ac", 1, slot=1)
    coming = place.visit("ab", 1)
    place.lead("ab")
    coming.result(LONG).close()
    place.lead("ac", slot=1)
    early.result(LONG).close()


def test_strangers_do_not_disturb(place: Place) -> None:
    place.door.open()
    hello = {"check": CHECK, "slot": 0, "rank": 1, "able": [], "port": 1, "error": ""}
    strangers = [
        place.say(b"GET / HTTP/1.0\r\n"),
        place.say(b"[1]\n"),
        place.say(json.dumps({**hello, "check": CHECK - 1}).encode() + b"\n"),
        place.say(json.dumps({**hello, "port": "x"}).encode() + b"\n"),
        place.say(json.dumps({"check": CHECK}).encode() + b"\n"),
        place.say(b"x" * 100_000),
    ]
    coming = place.visit("ab", 1)
    place.lead("ab")
    coming.result(LONG).close()
    for stranger in strangers:
        with pytest.raises((ConnectionError, AssertionError)):  # it is told nothing
            assert stranger.recv(1)


def test_of_a_guest_that_comes_twice_the_later_one_counts(place: Place) -> None:
    place.door.open()
    hello = {"check": CHECK, "slot": 0, "rank": 1, "able": [], "port": 1, "error": ""}
    before, after = (place.say(json.dumps(hello).encode() + b"\n") for _ in range(2))
    with pytest.raises(ProbeError, match=r"^x did not come to a at 127\.0\.0\.1:\d+ in time$"):
        place.door.receive(place.group("abx", 0), place.until(SHORT))
    assert before.recv(1) == b""
    with after.makefile() as answer:
        assert json.loads(answer.readline())["error"].startswith("x did not come")


def test_a_refusal_reaches_everybody(place: Place) -> None:
    guests = [place.visit("abc", 1, problem="b failed its self test"), place.visit("abc", 2)]
    with pytest.raises(ProbeError, match=r"^b failed its self test$"):
        place.lead("abc")
    for guest in guests:
        assert str(guest.exception(LONG)) == "b failed its self test"


def test_a_host_that_declines_tells_all_its_guests(place: Place) -> None:
    guests = [place.visit("abc", rank) for rank in (1, 2)]
    place.door.turn_away(place.group("abc", 0), "a failed its self test", place.until(LONG))
    for guest in guests:
        assert str(guest.exception(LONG)) == "a failed its self test"


def test_a_host_that_declines_does_not_wait_forever(place: Place) -> None:
    place.door.turn_away(place.group("ab", 0), "a failed its self test", place.until(SHORT))


def test_a_port_that_stays_taken_is_named(place: Place) -> None:
    holder = listen("", place.port)
    with pytest.raises(ProbeError, match=f"^cannot listen on port {place.port}: Address already in use$"):
        place.lead("ab", SHORT)
    holder.close()


def test_a_port_that_becomes_free_is_taken(place: Place) -> None:
    holder = listen("", place.port)
    assert place.door.open() is not None
    coming = place.visit("ab", 1)
    connection, _ = holder.accept()  # the guest met somebody else first
    connection.close()
    holder.close()
    place.lead("ab")
    coming.result(LONG).close()


def test_a_host_that_never_answers(place: Place) -> None:
    holder = listen("", place.port)
    with pytest.raises(ProbeError, match=r"^no answer from a at 127\.0\.0\.1:\d+ in time: Connection timed"):
        place.visit("ab", 1, patience=SHORT).result(LONG)
    holder.close()


@pytest.mark.parametrize(
    ("abilities", "chosen"),
    [
        ([["tcp", "gloo", "nccl"], ["tcp", "gloo", "nccl"]], "nccl"),
        ([["tcp", "gloo", "nccl"], ["tcp", "gloo"]], "gloo"),
        ([["tcp", "gloo"], ["tcp"]], "tcp"),
        ([["tcp"], []], "tcp"),
    ],
)
def test_the_best_that_all_have_is_chosen(abilities: list[list[str]], chosen: str) -> None:
    assert best(abilities) == chosen
