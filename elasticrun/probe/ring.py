"""All-gathers over plain TCP, in a ring.

Each rank sends to the next one and receives from the one before, at the same time. After n - 1 steps, in each
of which it passes on the block that came last, it has every block: the fewest bytes possible, and every
link of the ring carries as many. Nothing but sockets is needed, so this works without torch, and it is how
a node tests its own network stack.
"""

from __future__ import annotations

import random
import socket
import struct
import time
from collections.abc import Sequence
from functools import cache

from .sockets import ATTEMPT, ProbeError, accept, connect, exchange, remaining, why
from .transport import MAX_RECEIVED

#: First bytes on each link: the tag of the ring, the slot, and the rank of the sender.
_HEADER = struct.Struct("!QII")
#: A prime, so that a block shifted by a page or a packet does not look right.
_PERIOD = 65_521


class Ring:
    """One rank of a ring; see Transport."""

    max_received = MAX_RECEIVED

    def __init__(
        self,
        names: Sequence[str],
        rank: int,
        left: socket.socket,
        right: socket.socket,
        deadline: float,
        damages: bool = False,
    ) -> None:
        self.size = len(names)
        self._names = names
        self._rank = rank
        self._left = left
        self._right = right
        self._deadline = deadline
        self._damages = damages  # a drill: what this rank sends is wrong

    def share(self, value: float) -> list[float]:
        blocks = self._blocks(bytearray(struct.pack("!d", value)))
        self._gather(blocks)
        return [struct.unpack("!d", block)[0] for block in blocks]

    def time_gather(self, length: int) -> float:
        mine = pattern(self._rank, length)
        if self._damages:
            mine[-1] ^= 1
        blocks = self._blocks(mine)
        start = time.perf_counter()
        self._gather(blocks)
        seconds = time.perf_counter() - start
        for rank, block in enumerate(blocks):
            if rank != self._rank and block != pattern(rank, length):
                raise ProbeError(f"what {self._names[rank]} sent arrived damaged")
        return seconds

    def close(self) -> None:
        self._left.close()
        self._right.close()

    def _blocks(self, mine: bytearray) -> list[bytearray]:
        """Our block, and room for the others', with its pages already mapped."""
        return [mine if rank == self._rank else bytearray(b"\xff") * len(mine) for rank in range(self.size)]

    def _gather(self, blocks: list[bytearray]) -> None:
        for step in range(self.size - 1):
            outgoing = blocks[(self._rank - step) % self.size]
            incoming = blocks[(self._rank - step - 1) % self.size]
            self._pass_on(memoryview(outgoing), memoryview(incoming))

    def _pass_on(self, outgoing: memoryview, incoming: memoryview) -> None:
        try:
            exchange(self._right, outgoing, self._left, incoming, self._deadline)
        except OSError as error:
            before = self._names[(self._rank - 1) % self.size]
            after = self._names[(self._rank + 1) % self.size]
            links = f"with {before}" if before == after else f"from {before} or to {after}"
            raise ProbeError(f"the connection {links} failed: {why(error)}") from error


def pattern(rank: int, length: int) -> bytearray:
    """What a rank sends: no two ranks the same, and the same on every machine."""
    return (bytearray(_period(rank)) * (length // _PERIOD + 1))[:length]


@cache
def _period(rank: int) -> bytes:
    return random.Random(rank).randbytes(_PERIOD)


def join_ring(
    names: Sequence[str],
    rank: int,
    tag: tuple[int, int],
    listener: socket.socket,
    places: Sequence[tuple[str, int]],
    deadline: float,
    damages: bool = False,
) -> Ring:
    """Connect to the next rank and be connected to by the one before; ProbeError if that fails.

    ``places`` are where the ranks listen; ``tag`` tells this ring from those of other slots and checks.
    """
    after, before = (rank + 1) % len(names), (rank - 1) % len(names)
    right = _reach(names[after], places[after], deadline)
    try:
        exchange(right, memoryview(_HEADER.pack(*tag, rank)), right, memoryview(b""), deadline)
        left = _await(listener, _HEADER.pack(*tag, before), deadline)
    except OSError as error:
        right.close()
        raise ProbeError(f"no connection came from {names[before]}: {why(error)}") from error
    return Ring(names, rank, left, right, deadline, damages)


def _reach(name: str, place: tuple[str, int], deadline: float) -> socket.socket:
    """Connect to a peer. It listens before it says where, so a refusal is final; a timeout is tried again."""
    while True:
        try:
            return connect(*place, deadline)
        except OSError as error:
            if isinstance(error, TimeoutError) and time.monotonic() < deadline:
                continue
            raise ProbeError(f"cannot connect to {name} at {place[0]}: {why(error)}") from error


def _await(listener: socket.socket, header: bytes, deadline: float) -> socket.socket:
    """The connection that begins with ``header``; any other is closed."""
    while True:
        connection = accept(listener, deadline)
        first = bytearray(len(header))
        try:
            nothing = memoryview(b"")
            patience = time.monotonic() + min(ATTEMPT, remaining(deadline))
            exchange(connection, nothing, connection, memoryview(first), patience)
        except OSError:
            connection.close()
            continue
        if first == header:
            return connection
        connection.close()
