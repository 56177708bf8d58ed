"""Who is let in at the door, who is turned away, and what rank 0 decides."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from elasticrun.probe.proof import GUEST, HOST, sealed, unsealed
from elasticrun.probe.rendezvous import MAX_STRANGERS, Door, Group, Meeting, Pass, best, lead, visit
from elasticrun.probe.sockets import ProbeError, listen
from tests.support.ports import free_port

CHECK = 7
SECRET = b"of this check"
LONG = 30.0
SHORT = 0.3


def no_store(address: str, deadline: float) -> tuple[Any, int]:
    raise AssertionError("nobody asked for torch")


class Place:
    """A door, and threads that go to it."""

    def __init__(self) -> None:
        self.port = free_port()
        self.door = Door(self.port, CHECK, SECRET)
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
        secret: bytes = SECRET,
    ) -> Future[Meeting]:
        until = self.until(patience)
        return self._threads.submit(
            visit, self.group(names, rank, slot), Pass(check, secret), ("tcp", "gloo"), until, until, problem
        )

    def say(self, data: bytes) -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", self.port), LONG)
        connection.sendall(data)
        self._opened.append(connection)
        return connection

    def come(self, hello: dict[str, Any]) -> Future[bytes]:
        """Say this as a member, and hear one line."""

        def exchange() -> bytes:
            said = sealed(SECRET, GUEST, lines.readline().decode().strip(), hello)
            connection.sendall(said)
            return lines.readline()

        connection = self.say(b"")
        lines = connection.makefile("rb")
        return self._threads.submit(exchange)

    @staticmethod
    def until(patience: float) -> float:
        return time.monotonic() + patience

    def close(self) -> None:
        self.door.close()
        self._threads.shutdown()
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


HELLO = {"check": CHECK, "nonce": "n", "slot": 0, "rank": 1, "able": [], "port": 1, "error": ""}


def test_strangers_do_not_disturb(place: Place, capfd: pytest.CaptureFixture[str]) -> None:
    place.door.open()
    strangers = [
        place.say(b"GET / HTTP/1.0\r\n"),
        place.say(b"[1]\n"),
        place.say(json.dumps({**HELLO, "error": "there is no all-gather"}).encode() + b"\n"),
        place.say(json.dumps({**HELLO, "able": 5}).encode() + b"\n"),
        place.say(sealed(b"a guess", GUEST, "", {**HELLO, "error": "there is none"})),
        place.say(b"x" * 100_000),
    ]
    thief = place.visit("ab", 1, patience=SHORT, secret=b"a guess")
    coming = place.visit("ab", 1)
    place.lead("ab")
    coming.result(LONG).close()
    with pytest.raises(ProbeError, match="no answer from"):
        thief.result(LONG)
    for stranger in strangers:
        with pytest.raises((ConnectionError, AssertionError)):
            stranger.recv(1000)
            assert stranger.recv(1), "after the challenge it is told nothing"
    assert "ignored a connection from a non-member to the port of the check" in capfd.readouterr().err


def test_a_thousand_who_say_nothing_keep_nobody_waiting(place: Place) -> None:
    place.door.open()
    for _ in range(100):
        place.say(b"")
    comings = [place.visit("abc", 1)]
    leading = place._threads.submit(place.lead, "abc")
    for _ in range(300):  # which rank 0 takes in as they come
        place.say(b"")
    comings.append(place.visit("abc", 2))
    leading.result(LONG)
    for coming in comings:
        coming.result(LONG).close()
    assert len(place.door._strangers) <= MAX_STRANGERS


ABSURD = [
    {"able": 5},
    {"able": [5]},
    {"able": ["tcp"] * 65},
    {"able": {}},
    {"port": 0},
    {"port": 65_536},
    {"port": "1"},
    {"port": True},
    {"slot": -1},
    {"slot": 1.5},
    {"slot": 1 << 40},
    {"rank": 0},
    {"rank": None},
    {"check": CHECK - 1},
    {"check": str(CHECK)},
    {"nonce": 5},
    {"error": ["x"]},
]


@pytest.mark.parametrize("absurd", ABSURD, ids=lambda absurd: str(absurd)[:20])
def test_an_absurd_word_of_a_member_is_no_error_of_the_check(place: Place, absurd: dict[str, Any]) -> None:
    place.door.open()
    place.come({**HELLO, **absurd})
    coming = place.visit("ab", 1)
    place.lead("ab")
    coming.result(LONG).close()


ANSWERS = [
    {},
    {"transport": "rdma", "store": 0, "places": [["", 1], ["", 1]]},
    {"transport": "tcp", "store": 0, "places": [["", 1]]},
    {"transport": "tcp", "store": -1, "places": [["", 1], ["", 1]]},
    {"transport": "tcp", "store": 0, "places": [["", 0], ["", 1]]},
    {"transport": "tcp", "store": 0, "places": [["", 1], [5, 1]]},
    {"transport": "tcp", "store": 0, "places": 5},
    {"transport": 5, "store": 0, "places": [["", 1], ["", 1]]},
]


@pytest.mark.parametrize("said", ANSWERS, ids=str)
@pytest.mark.parametrize("secret", [SECRET, b"a guess"])
def test_a_host_that_cannot_be_believed_is_no_host(said: dict[str, Any], secret: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as threads:
        group = Group(0, 1, ("a", "b"), *listener.getsockname())
        until = Place.until(SHORT)
        coming = threads.submit(visit, group, Pass(CHECK, SECRET), ("tcp",), until, until)
        connection, _ = listener.accept()
        with connection:
            connection.sendall(b"c\n")
            nonce = unsealed(SECRET, GUEST, "c", connection.makefile("rb").readline())["nonce"]
            connection.sendall(sealed(secret, HOST, nonce, said))
            with pytest.raises(ProbeError, match="no answer from"):
                coming.result(LONG)


def test_of_a_guest_that_comes_twice_one_counts(place: Place) -> None:
    place.door.open()
    before, after = place.come(HELLO), place.come(HELLO)
    with pytest.raises(ProbeError, match=r"^x did not come to a at 127\.0\.0\.1:\d+ in time$"):
        place.door.receive(place.group("abx", 0), place.until(SHORT))
    nothing, answer = sorted([before.result(LONG), after.result(LONG)])
    assert nothing == b""
    assert unsealed(SECRET, HOST, "n", answer)["error"].startswith("x did not come")


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
        ([["tcp", "gloo", "nccl", "gpu=a"], ["tcp", "gloo", "nccl", "gpu=b"]], "nccl"),
        ([["tcp", "gloo", "nccl", "gpu=a"], ["tcp", "gloo", "nccl"]], "nccl"),
        ([["tcp", "gloo", "nccl", "gpu=a"], ["tcp", "gloo", "nccl", "gpu=a"]], "gloo"),
        ([["tcp", "gloo"], ["tcp"]], "tcp"),
        ([["tcp"], []], "tcp"),
    ],
)
def test_the_best_that_all_have_is_chosen(abilities: list[list[str]], chosen: str) -> None:
    assert best(abilities) == chosen
