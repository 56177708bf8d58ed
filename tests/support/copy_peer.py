"""A peer of an agent that sends it copies, or takes them in, and does so as a test wants it."""

from __future__ import annotations

import hmac
import json
import select
import socket
import struct
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from elasticrun.agent.memory.transfer import CHALLENGE, HEAD, Reception, line_length
from elasticrun.core.protocol.commits import CommitId, Copy, Inlet, Part
from elasticrun.core.state.events import Offer, Piece
from elasticrun.rpc.records import to_json
from tests.support.memory_host import DEADLINE

KEY = b"k" * 32
_PROOF = 32


def heard(reception: Reception, channel: socket.socket) -> Offer:
    """The offer that comes in, as the agent's loop hears it."""
    channel.sendall(reception.challenge)
    return reception.understand(exactly(channel, line_length(exactly(channel, HEAD))))


def exactly(channel: socket.socket, length: int) -> bytes:
    """So many bytes. ConnectionError if they end before."""
    data = b""
    while len(data) < length:
        if not (more := channel.recv(length - len(data))):
            raise ConnectionError("the connection was closed")
        data += more
    return data


def part_of(commit: CommitId, rank: int, *data: bytes, size: int = 2) -> Offer:
    """A part with these pieces, as the node with this group rank would offer it."""
    pieces = tuple(Piece(rank + number, len(each), f"d{number}") for number, each in enumerate(data))
    return Offer(commit, size, Part(rank, f"digest {rank}", True), pieces)


class Taker(Reception):
    """A reception that says everything itself."""

    def __init__(self, channel: socket.socket, key: bytes) -> None:
        super().__init__(channel, key)
        self._say = channel.sendall

    def hold(self) -> None:
        """Keep the sender waiting."""
        self._say(self.wait)

    def refuse(self, reason: str, is_here: bool) -> None:
        self._say(self.refusal(reason, is_here))

    def accept(self) -> None:
        """Say that the part is taken, and take nothing yet."""
        self._say(self.taken)

    def take(self, targets: Sequence[memoryview]) -> None:
        self.accept()
        super().take(targets)

    def confirm(self) -> None:
        self._say(self.stored)


class Sender:
    """Sends to the inlet of an agent."""

    def __init__(self, inlet: Inlet, key: bytes | None = None) -> None:
        """``key``: with which it proves who it is; by default that of the inlet."""
        self.channel = socket.create_connection(("127.0.0.1", inlet.port), DEADLINE)
        self._key = inlet.key if key is None else key
        self._seal = exactly(self.channel, CHALLENGE)

    def __enter__(self) -> Sender:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.channel.close()

    def offer(self, offer: Offer) -> dict[str, Any]:
        """Offer a part; returns the answer. ConnectionError if it is hung up on."""
        line = json.dumps({**to_json(offer), "nonce": "one"}).encode()
        self._seal = hmac.digest(self._key, b"|".join((b"sender", self._seal, line)), "sha256")
        self.channel.sendall(struct.pack("!I", len(line)) + line + self._seal)
        return self.hear()

    def hear(self) -> dict[str, Any]:
        data = exactly(self.channel, line_length(exactly(self.channel, HEAD)))
        answer: dict[str, Any] = json.loads(data[:-_PROOF])
        return answer

    def prove(self, data: bytes) -> None:
        """Send the proof of these bytes."""
        self.channel.sendall(hmac.digest(self._key, b"data" + self._seal + data, "sha256"))

    @property
    def is_hung_up(self) -> bool:
        """Whether the agent closes the connection; waits for it."""
        try:
            return self.channel.recv(1) == b""
        except ConnectionError:
            return True


class Receiver:
    """Listens where an agent is told to send a part to."""

    def __init__(self, key: bytes = KEY) -> None:
        self._key = key
        self._listener = socket.socket()
        # small, so that a part of some megabytes does not fit into what the kernel takes in for us
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self._listener.bind(("127.0.0.1", 0))
        self._listener.listen()
        self._listener.settimeout(DEADLINE)
        self.channel: socket.socket | None = None

    def __enter__(self) -> Receiver:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.close()
        if self.channel is not None:
            self.channel.close()

    def copy(self, rank: int) -> Copy:
        """The order to send a part here."""
        return Copy(rank, "127.0.0.1", Inlet(self._listener.getsockname()[1], KEY))

    @property
    def is_called(self) -> bool:
        """Whether a connection waits to be taken."""
        return bool(select.select([self._listener], [], [], 0)[0])

    def greet(self) -> tuple[Taker, Offer]:
        """Take the next connection, and what it offers."""
        self.channel, _ = self._listener.accept()
        self.channel.settimeout(DEADLINE)
        reception = Taker(self.channel, self._key)
        return reception, heard(reception, self.channel)

    def hang_up(self) -> None:
        """Leave the connection, so that another one can be taken."""
        assert self.channel is not None
        self.channel.close()

    def rest(self) -> int:
        """How many bytes come until the connection ends."""
        assert self.channel is not None
        count = 0
        try:
            while more := self.channel.recv(1 << 20):
                count += len(more)
        except ConnectionError:
            pass
        return count
