"""How the ranks of a group find one another and agree on what carries their all-gather.

Rank 0 listens; the *door* is open before the self test begins, so that an early peer finds it. The others
connect and say who they are, what they can do, and where their part of a ring listens. Once everybody is
there, rank 0 answers all of them: the best transport that each one has, and what is needed to begin. So a
node without torch, or without GPUs, does not spoil the all-gather for those that have it; it is then
done with what all have. So do nodes that share a GPU, as agents on one host may.

A guest of a later slot may come early and is kept until then. A stranger (an earlier probe, a port scanner,
an attacker) cannot prove that it takes part (``proof.py``) and is turned away. Of too many silent connections
the oldest are closed, as a member speaks at once. If a member is missing at the end, rank 0 tells the others
which one. A member that cannot take part (its self test failed) comes to say so, so that nobody waits for it.
"""

from __future__ import annotations

import contextlib
import select
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .proof import GUEST, HOST, fresh, number, sealed, text, unsealed, words
from .sockets import (
    MAX_LINE,
    ProbeError,
    connect,
    exchange,
    listen,
    pause,
    plain_address,
    receive,
    remaining,
    tuned,
    why,
)

#: Best first.
TRANSPORTS = ("nccl", "gloo", "tcp")
#: Begins the word that says which GPU a rank has. NCCL takes no two ranks on one GPU.
GPU = "gpu="
#: Seconds for sending one answer to a guest.
_FAREWELL = 1.0
#: The most connections that have not proven yet that they are a member's.
MAX_STRANGERS = 100
#: Limits of what a member says: numbers, ports, items of a list, letters of a text.
_MAX_NUMBER, _MAX_PORT, _MAX_WORDS, _MAX_TEXT = 1 << 31, 65_535, 64, 1000


@dataclass(frozen=True)
class Group:
    """One all-gather that this node takes part in."""

    slot: int
    rank: int
    names: tuple[str, ...]
    address: str  # where rank 0 listens
    port: int


@dataclass
class Meeting:
    """A group that is complete; its ranks know how to go on."""

    transport: str
    store_port: int  # of the TCPStore that rank 0 hosts, if torch does the work
    host: str  # where this rank reaches rank 0; for rank 0 its own address
    address: str  # of this rank, on the network that the group uses
    places: list[tuple[str, int]]  # where each rank listens for its ring neighbour
    ring: socket.socket
    store: Any = None  # rank 0's
    connections: list[socket.socket] = field(default_factory=list)

    def close(self) -> None:
        """Close all connections, and drop the store."""
        for connection in (self.ring, *self.connections):
            connection.close()
        self.store = None


@dataclass
class _Guest:
    connection: socket.socket
    challenge: str = field(default_factory=fresh)
    line: bytearray = field(default_factory=bytearray)
    nonce: str = ""  # its challenge, for our answers
    able: tuple[str, ...] = ()
    error: str = ""
    place: tuple[str, int] = ("", 0)


class Door:
    """The listener on one port, for the guests of all groups that this node leads there."""

    def __init__(self, port: int, check: int, secret: bytes) -> None:
        self._port = port
        self._check = check
        self._secret = secret
        self._listener: socket.socket | None = None
        self._strangers: list[_Guest] = []  # they have not said yet who they are
        self._guests: dict[tuple[int, int], _Guest] = {}  # by slot and rank

    def open(self) -> OSError | None:
        """Listen from now on; the error if the port cannot be had."""
        if self._listener is None:
            try:
                self._listener = listen("", self._port)
            except OSError as error:
                return error
        return None

    def close(self) -> None:
        """Stop listening, and close all connections."""
        everybody = [guest.connection for guest in (*self._strangers, *self._guests.values())]
        for opened in filter(None, (self._listener, *everybody)):
            opened.close()

    def receive(self, group: Group, deadline: float) -> list[_Guest]:
        """The guests of a group, by rank from 1; ProbeError if one does not come, or comes to decline."""
        self._insist(deadline)
        wanted = [(group.slot, rank) for rank in range(1, len(group.names))]
        while missing := [key for key in wanted if key not in self._guests]:
            self._heed_refusal(group, deadline)
            try:
                self._listen_once(deadline)
            except TimeoutError:
                names = ", ".join(group.names[rank] for _, rank in missing)
                problem = f"{names} did not come to {group.names[0]} at {group.address}:{group.port} in time"
                self._send_away(group.slot, problem)
                raise ProbeError(problem) from None
        self._heed_refusal(group, deadline)
        return [self._guests.pop(key) for key in wanted]

    def turn_away(self, group: Group, problem: str, deadline: float) -> None:
        """Tell the guests of a group, until all have come, why there is no all-gather."""
        missing = {(group.slot, rank) for rank in range(1, len(group.names))}
        try:
            self._insist(deadline)
            while missing := missing - self._send_away(group.slot, problem):
                self._listen_once(deadline)
        except (ProbeError, TimeoutError):
            return  # the others do not come, or cannot: nobody is left to be told

    def _heed_refusal(self, group: Group, deadline: float) -> None:
        told = (guest.error for key, guest in self._guests.items() if key[0] == group.slot)
        problem = next(filter(None, told), None)
        if problem is not None:
            self.turn_away(group, problem, deadline)
            raise ProbeError(problem)

    def _insist(self, deadline: float) -> None:
        while (error := self.open()) is not None:
            try:
                pause(deadline)
            except TimeoutError:
                raise ProbeError(f"cannot listen on port {self._port}: {why(error)}") from error

    def _listen_once(self, deadline: float) -> None:
        assert self._listener is not None
        talkers = {guest.connection: guest for guest in self._strangers}
        ready, _, _ = select.select([self._listener, *talkers], [], [], remaining(deadline))
        for connection in ready:
            if connection is self._listener:
                self._greet()
            elif talkers[connection] in self._strangers:
                self._hear(talkers[connection])

    def _greet(self) -> None:
        assert self._listener is not None
        try:
            guest = _Guest(tuned(self._listener.accept()[0]))
            guest.connection.send(guest.challenge.encode() + b"\n")  # there is room in a new connection
        except OSError:
            return  # it has gone again
        self._strangers.append(guest)
        if len(self._strangers) > MAX_STRANGERS:
            self._dismiss(self._strangers[0])

    def _dismiss(self, stranger: _Guest) -> None:
        self._strangers.remove(stranger)
        stranger.connection.close()

    def _hear(self, guest: _Guest) -> None:
        try:
            data = guest.connection.recv(MAX_LINE)
        except OSError:
            data = b""
        guest.line += data
        if guest.line.endswith(b"\n"):
            self._strangers.remove(guest)
            self._admit(guest)
        elif not data or len(guest.line) > MAX_LINE:
            self._dismiss(guest)

    def _admit(self, guest: _Guest) -> None:
        try:
            key = self._understand(guest)
        except (OSError, KeyError, ValueError) as error:
            print(
                f"ignored a connection from a non-member to the port of the check: {why(error)}",
                file=sys.stderr,
            )
            guest.connection.close()
            return
        if (earlier := self._guests.pop(key, None)) is not None:
            earlier.connection.close()
        self._guests[key] = guest

    def _understand(self, guest: _Guest) -> tuple[int, int]:
        """The guest's slot and rank. Raises if its line is not from a member of this check, or is absurd."""
        hello = unsealed(self._secret, GUEST, guest.challenge, bytes(guest.line))
        number(hello["check"], self._check, self._check)
        guest.nonce = text(hello["nonce"], _MAX_TEXT)
        guest.able = words(hello["able"], _MAX_WORDS, _MAX_TEXT)
        guest.error = text(hello["error"], _MAX_TEXT)
        address = plain_address(guest.connection.getpeername())
        guest.place = address, number(hello["port"], 1, _MAX_PORT)
        return number(hello["slot"], 0, _MAX_NUMBER), number(hello["rank"], 1, _MAX_NUMBER)

    def answer(self, guest: _Guest, message: Mapping[str, Any]) -> None:
        """Send a guest an answer; if it has gone, the ring, or torch, will not find it."""
        line = memoryview(sealed(self._secret, HOST, guest.nonce, message))
        deadline = time.monotonic() + _FAREWELL
        with contextlib.suppress(OSError):
            exchange(guest.connection, line, guest.connection, memoryview(b""), deadline)

    def _send_away(self, slot: int, problem: str) -> set[tuple[int, int]]:
        keys = {key for key in self._guests if key[0] == slot}
        for key in keys:
            guest = self._guests.pop(key)
            self.answer(guest, {"error": problem})
            guest.connection.close()
        return keys


def lead(
    group: Group,
    door: Door,
    able: Sequence[str],
    host_store: Callable[[str, float], tuple[Any, int]],
    deadline: float,
) -> Meeting:
    """Be rank 0: wait for all, decide, tell everybody. ProbeError if somebody does not come.

    ``host_store`` makes a TCPStore, given the address and the deadline.
    """
    guests = door.receive(group, deadline)
    connections = [guest.connection for guest in guests]
    own = plain_address(connections[0].getsockname())
    transport = best([able, *(guest.able for guest in guests)])
    store, store_port = (None, 0) if transport == "tcp" else host_store(own, deadline)
    ring = listen(own, 0)
    places = [("", ring.getsockname()[1]), *(guest.place for guest in guests)]
    meeting = Meeting(transport, store_port, own, own, places, ring, store, connections)
    for guest in guests:
        door.answer(guest, {"transport": transport, "store": store_port, "places": places})
    return meeting


def best(abilities: Sequence[Sequence[str]]) -> str:
    """The best transport that all ranks have, and that works among them."""
    gpus = [word for able in abilities for word in able if word.startswith(GPU)]
    works = TRANSPORTS if len(set(gpus)) == len(gpus) else tuple(it for it in TRANSPORTS if it != "nccl")
    return next((name for name in works if all(name in able for able in abilities)), "tcp")


@dataclass(frozen=True)
class Pass:
    """What a member of a check knows of it."""

    check: int
    secret: bytes = field(repr=False)


def visit(
    group: Group, check: Pass, able: Sequence[str], deadline: float, patience: float, problem: str = ""
) -> Meeting:
    """Be any other rank: connect to rank 0 and learn how to go on. ProbeError if there is no all-gather.

    ``deadline`` is for reaching rank 0, ``patience`` for its answer: later, so that there is time to learn
    which other member is missing. With a ``problem``, tell rank 0; that always ends in a ProbeError.
    """
    reason = ""
    while True:
        try:
            return _visit_once(group, check, able, deadline, patience, problem)
        except OSError as error:
            if not isinstance(error, TimeoutError) or not reason:
                reason = why(error)  # "refused" tells more than that the time was over in the end
            try:
                pause(deadline)
            except TimeoutError:
                place = f"{group.names[0]} at {group.address}:{group.port}"
                raise ProbeError(f"no answer from {place} in time: {reason}") from error


def _visit_once(
    group: Group, check: Pass, able: Sequence[str], deadline: float, patience: float, problem: str
) -> Meeting:
    connection = connect(group.address, group.port, deadline)
    ring = None
    try:
        own = plain_address(connection.getsockname())
        ring = listen(own, 0)
        nonce = fresh()
        hello = {
            "check": check.check,
            "nonce": nonce,
            "slot": group.slot,
            "rank": group.rank,
            "able": list(able),
            "port": ring.getsockname()[1],
            "error": problem,
        }
        challenge = receive(connection, patience).decode("ascii", "replace").strip()
        line = memoryview(sealed(check.secret, GUEST, challenge, hello))
        exchange(connection, line, connection, memoryview(b""), deadline)
        answer = unsealed(check.secret, HOST, nonce, receive(connection, patience))
        return _meeting(answer, group, own, ring, connection)
    except BaseException:
        for opened in filter(None, (connection, ring)):
            opened.close()
        raise


def _meeting(
    answer: Mapping[str, Any], group: Group, own: str, ring: socket.socket, connection: socket.socket
) -> Meeting:
    """How to go on; ProbeError if there is no all-gather, ConnectionError if that makes no sense."""
    if "error" in answer:
        raise ProbeError(str(answer["error"])[:_MAX_TEXT])
    host = plain_address(connection.getpeername())
    try:
        transport = text(answer["transport"], _MAX_TEXT)
        store = number(answer["store"], 0, _MAX_PORT)
        places = [(text(a, _MAX_TEXT) or host, number(p, 1, _MAX_PORT)) for a, p in answer["places"]]
    except (KeyError, TypeError, ValueError) as error:
        raise ConnectionError("the peer speaks another protocol") from error
    if transport not in TRANSPORTS or len(places) != len(group.names):
        raise ConnectionError("the peer speaks another protocol")
    return Meeting(transport, store, host, own, places, ring, None, [connection])
