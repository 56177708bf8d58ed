"""How the ranks of a group find one another and agree on what carries their all-gather.

Rank 0 listens; the *door* is open before the self test begins, so that an early peer finds it. The others
connect and say who they are, what they can do, and where their part of a ring listens. Once everybody is
there, rank 0 answers all of them: the best transport that each one has, and what is needed to begin. So a
node without torch, or without GPUs, does not spoil the all-gather for those that have it; it is then
done with what all have.

A guest of a later slot may come early and is kept until then. Anybody else (an earlier probe, a port
scanner) is turned away. If somebody is missing at the end, rank 0 tells those who came who that is; and who
cannot take part (its self test failed) comes to say so, that nobody waits for it.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .sockets import (
    MAX_LINE,
    ProbeError,
    connect,
    listen,
    parse_line,
    pause,
    plain_address,
    receive_line,
    remaining,
    send_line,
    tuned,
    why,
)

#: Best first.
TRANSPORTS = ("nccl", "gloo", "tcp")
#: Seconds for telling the guests that somebody is missing.
_FAREWELL = 1.0


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
    places: list[tuple[str, int]]  # where the ranks' parts of a ring listen
    ring: socket.socket
    store: Any = None  # rank 0's
    connections: list[socket.socket] = field(default_factory=list)

    def close(self) -> None:
        """Let go of everybody."""
        for connection in (self.ring, *self.connections):
            connection.close()
        self.store = None


@dataclass
class _Guest:
    connection: socket.socket
    line: bytearray = field(default_factory=bytearray)
    hello: dict[str, Any] = field(default_factory=dict)

    @property
    def place(self) -> tuple[str, int]:
        return plain_address(self.connection.getpeername()), int(self.hello["port"])


class Door:
    """Where the guests of all groups come that this node leads through one port."""

    def __init__(self, port: int, check: int) -> None:
        self._port = port
        self._check = check
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
        """Let nobody in any more, and send everybody away."""
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
            return  # the others do not come, or cannot: then nobody is left to be told

    def _heed_refusal(self, group: Group, deadline: float) -> None:
        told = (guest.hello.get("error") for key, guest in self._guests.items() if key[0] == group.slot)
        problem = next(filter(None, told), None)
        if problem is not None:
            self.turn_away(group, str(problem), deadline)
            raise ProbeError(str(problem))

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
                self._strangers.append(_Guest(tuned(connection.accept()[0])))
            else:
                self._hear(talkers[connection])

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
            self._strangers.remove(guest)
            guest.connection.close()

    def _admit(self, guest: _Guest) -> None:
        try:
            guest.hello = parse_line(bytes(guest.line))
            key = int(guest.hello["slot"]), int(guest.hello["rank"])
            known = guest.hello["check"] == self._check and guest.place is not None
        except (OSError, KeyError, TypeError, ValueError):
            known = False
        if not known:
            guest.connection.close()
            return
        if (earlier := self._guests.pop(key, None)) is not None:
            earlier.connection.close()
        self._guests[key] = guest

    def _send_away(self, slot: int, problem: str) -> set[tuple[int, int]]:
        keys = {key for key in self._guests if key[0] == slot}
        for key in keys:
            guest = self._guests.pop(key)
            _answer(guest.connection, {"error": problem})
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
    transport = best([able, *(guest.hello.get("able", ()) for guest in guests)])
    store, store_port = (None, 0) if transport == "tcp" else host_store(own, deadline)
    ring = listen(own, 0)
    places = [("", ring.getsockname()[1]), *(guest.place for guest in guests)]
    meeting = Meeting(transport, store_port, own, own, places, ring, store, connections)
    for connection in connections:
        _answer(connection, {"transport": transport, "store": store_port, "places": places})
    return meeting


def best(abilities: Sequence[Sequence[str]]) -> str:
    """The best transport that all ranks have."""
    return next((name for name in TRANSPORTS if all(name in able for able in abilities)), "tcp")


def _answer(connection: socket.socket, message: Mapping[str, Any]) -> None:
    """Tell a guest; one that has gone shows when the ring, or torch, does not find it."""
    try:
        send_line(connection, dict(message), time.monotonic() + _FAREWELL)
    except OSError:
        return


def visit(
    group: Group, check: int, able: Sequence[str], deadline: float, patience: float, problem: str = ""
) -> Meeting:
    """Be any other rank: come to rank 0 and hear how to go on. ProbeError if it is not to be found.

    ``patience`` is until when to wait for an answer: later than the ``deadline`` for finding it, so that
    there is time to hear who else is missing. With a ``problem``, say that, and hear a ProbeError.
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
    group: Group, check: int, able: Sequence[str], deadline: float, patience: float, problem: str
) -> Meeting:
    connection = connect(group.address, group.port, deadline)
    ring = None
    try:
        own = plain_address(connection.getsockname())
        ring = listen(own, 0)
        hello = {
            "check": check,
            "slot": group.slot,
            "rank": group.rank,
            "able": list(able),
            "port": ring.getsockname()[1],
            "error": problem,
        }
        send_line(connection, hello, deadline)
        answer = receive_line(connection, patience)
        if "error" in answer:
            raise ProbeError(str(answer["error"]))
        host = plain_address(connection.getpeername())
        places = [(str(address) or host, int(port)) for address, port in answer["places"]]
        return Meeting(answer["transport"], answer["store"], host, own, places, ring, None, [connection])
    except BaseException:
        for opened in filter(None, (connection, ring)):
            opened.close()
        raise
