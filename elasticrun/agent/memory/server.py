"""Gives workers memory for their state, which outlives them.

Theory. Each buffer is a memfd: it has no name in any file system, so nothing is left behind whoever is
killed, and it lives as long as any process has it open. The agent has; a worker gets the descriptor over a
Unix socket and maps it. What may be written where and when is the vault's to decide
(``core/state/vault.py``); this module only carries that out.

Who can speak here. The socket has an abstract, random name in this network namespace; a peer must run as
our user, which the kernel tells, and must know the token in its worker's environment. A message is at most
``MAX_MESSAGE`` bytes of JSON; one that makes no sense ends its connection, and the save of that connection.

The workers of a node trust each other: they share the token. One that speaks for another, or names other
contents than the others do, costs the node a commit. And nothing takes a descriptor back: whoever has saved
into a buffer, or restored from it, can write to it from then on. If one spoils its share of what local ranks
divide, all of them have lost it. The digests in a part are there to find accidents.

The pages of a buffer are there before a worker gets it: the kernel clears them, which takes longer than to
write them.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
import os
import socket
import struct
from collections.abc import Callable
from hmac import compare_digest
from typing import Any

from elasticrun.agent.memory.room import free_bytes
from elasticrun.core.protocol.commits import CommitId, Holding
from elasticrun.core.protocol.messages import Assignment
from elasticrun.core.state.events import (
    BufferMade,
    BufferRefused,
    DropBuffer,
    Grant,
    Hold,
    Judged,
    MakeBuffer,
    Refuse,
    RoundBegins,
    SaveBegins,
    SaveEnds,
    Stored,
    Tick,
    VaultEffect,
    VaultEvent,
    WorkerGone,
)
from elasticrun.core.state.vault import Vault

logger = logging.getLogger(__name__)

MAX_MESSAGE = 64 << 10
#: Connections that one worker may have at a time: its own, and those of programs that it starts.
CONNECTIONS = 8
MEMFD = "elasticrun-state"
_CREDENTIALS = struct.Struct("3i")  # of a peer: pid, uid, gid


class Connection:
    """One process of a worker that saves or restores."""

    def __init__(self, channel: socket.socket, number: int) -> None:
        self.channel = channel
        self.number = number  # no other connection ever has it
        self.local_rank: int | None = None  # None: it has not said who it is


class MemoryServer:
    """The saved states of one node. Made inside the running loop."""

    def __init__(
        self, local_world_size: int, token: str, on_holdings: Callable[[tuple[Holding, ...]], None]
    ) -> None:
        """``token``: what each worker has to know. ``on_holdings`` is called from the loop with all that this
        node holds, whenever that changes.
        """
        self._token = token
        self._loop = asyncio.get_running_loop()
        self._size = local_world_size
        self._on_holdings = on_holdings
        self._vault = Vault()
        self._fds: dict[int, int] = {}  # by buffer
        self._sizes: dict[int, int] = {}  # of buffers that are there or being made
        self._assignment: Assignment | None = None
        self._connections: dict[int, Connection] = {}  # by number; all are of the round that runs
        self._numbers = itertools.count()
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, assignment: Assignment) -> None:
        """Workers of a round are about to start; nothing is left of those before."""
        for connection in list(self._connections.values()):
            self._close(connection)
        self._assignment = assignment
        self._handle(RoundBegins.of(assignment, self._size))

    def judge(self, kept: CommitId | None, void: CommitId | None) -> None:
        """Hear what became of the commits of the round that runs."""
        self._handle(Judged(kept, void))

    def close(self) -> None:
        """Close everything; a buffer that is being made is closed once it is there.

        The memory is freed once no worker maps it.
        """
        for connection in list(self._connections.values()):
            self._close(connection)
        if self._timer is not None:
            self._timer.cancel()
        for fd in self._fds.values():
            os.close(fd)
        self._fds.clear()
        self._sizes.clear()

    # -- the vault

    def _handle(self, event: VaultEvent) -> None:
        for effect in self._vault.handle(event, self._loop.time()):
            self._carry_out(effect)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        deadline = self._vault.next_deadline()
        if deadline is not None:
            self._timer = self._loop.call_at(deadline, self._handle, Tick())

    def _carry_out(self, effect: VaultEffect) -> None:
        match effect:
            # The vault answers only those who are here: who hangs up gives its save up.
            case Grant(buffer=buffer, divides=divides, peer=peer):
                given: dict[str, Any] = {"buffer": buffer, "size": self._sizes[buffer], "divides": divides}
                self._send(self._connections[peer], {**given, "alive": list(self._sizes)}, buffer)
            case Stored(peer=peer):
                self._send(self._connections[peer], {"ended": True})
            case Refuse(reason=reason, peer=peer):
                self._send(self._connections[peer], {"refused": reason})
            case MakeBuffer(buffer, size):
                self._make(buffer, size)
            case DropBuffer(buffer):
                self._sizes.pop(buffer, None)
                if buffer in self._fds:
                    os.close(self._fds.pop(buffer))
            case Hold(holdings):
                self._on_holdings(holdings)

    # -- buffers

    def _make(self, buffer: int, size: int) -> None:
        room = free_bytes()
        untouched = sum(size for number, size in self._sizes.items() if number not in self._fds)
        if room is None:
            self._miss(buffer, f"{size} bytes are needed, and the kernel does not say how many can be taken")
            return
        if size + untouched > room:
            left = max(0, room - untouched)
            self._miss(buffer, f"{size} bytes are needed, and {left} bytes of memory can be taken")
            return
        self._sizes[buffer] = size
        try:
            self._loop.run_in_executor(None, self._fill, buffer, size)
        except RuntimeError as error:
            self._miss(buffer, f"the buffer cannot be made: {error}")

    def _fill(self, buffer: int, size: int) -> None:
        """Make a buffer, in a thread.

        The loop is told of it here, not by what this returns: if no thread could be started for it, another
        one may still come to it later, and nobody would close what it returns.
        """
        try:
            made: int | OSError = make_buffer(size)
        except OSError as error:
            made = error
        self._loop.call_soon_threadsafe(self._made, buffer, made)

    def _made(self, buffer: int, made: int | OSError) -> None:
        if isinstance(made, OSError):
            self._miss(buffer, f"the kernel gives no memory: {made.strerror}")
        elif buffer not in self._sizes:  # it was refused meanwhile, or all is closed
            os.close(made)
        else:
            self._fds[buffer] = made
            self._handle(BufferMade(buffer))

    def _miss(self, buffer: int, reason: str) -> None:
        """Tell the vault that there will be no such buffer."""
        self._sizes.pop(buffer, None)
        self._loop.call_soon(self._handle, BufferRefused(buffer, reason))

    # -- connections

    def accept(self, listener: socket.socket) -> None:
        """Take the next connection, if its process runs as our user and there are not too many."""
        with contextlib.suppress(BlockingIOError, ConnectionError):
            channel, _ = listener.accept()
            _, uid, _ = _CREDENTIALS.unpack(
                channel.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
            )
            # as many as may be greeted, and some that have not said yet who they are
            if uid != os.getuid() or len(self._connections) >= CONNECTIONS * (self._size + 1):
                channel.close()
                return
            channel.setblocking(False)
            connection = Connection(channel, next(self._numbers))
            self._connections[connection.number] = connection
            self._loop.add_reader(channel, self._read, connection)

    def _read(self, connection: Connection) -> None:
        try:
            data = connection.channel.recv(MAX_MESSAGE + 1)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._close(connection)
            return
        try:
            self._hear(connection, _parse(data))
        except ValueError as error:
            self._send(connection, {"refused": f"this message makes no sense: {error}"})
            self._close(connection)

    def _hear(self, connection: Connection, message: dict[str, Any]) -> None:
        rank = self._rank(connection)
        match message:
            case {"ask": "hello", "token": str(token), "local_rank": int(), "round": int()}:
                self._greet(connection, token, _natural(message, "local_rank"), _natural(message, "round"))
            case _ if rank is None:
                raise ValueError("it must begin with hello")
            case {"ask": "begin", "step": int(), "whole": int(), "share": int(), "contents": str()}:
                sizes = _natural(message, "step"), _natural(message, "whole"), _natural(message, "share")
                self._handle(SaveBegins(rank, *sizes, _digest(message, "contents"), connection.number))
            case {"ask": "end", "step": int(), "length": int(), "digest": str(), "own": bool(own)}:
                step, length = _natural(message, "step"), _natural(message, "length")
                digest = _digest(message, "digest")
                self._handle(SaveEnds(rank, step, length, digest, own, connection.number))
            case {"ask": "give up"}:
                self._handle(WorkerGone(rank, connection.number))
            case {"ask": "restore"}:
                self._show(connection)
            case _:
                raise ValueError("it asks for nothing that is known")

    def _greet(self, connection: Connection, token: str, local_rank: int, round_: int) -> None:
        given = self._assignment
        if not compare_digest(token.encode(), self._token.encode()):
            raise ValueError("its token is another one")
        if given is None or round_ != given.round or not 0 <= local_rank < self._size:
            raise ValueError(f"no worker {local_rank} of round {round_} runs here")
        if connection.local_rank is not None:
            raise ValueError("it has said hello before")
        if sum(each.local_rank == local_rank for each in self._connections.values()) >= CONNECTIONS:
            self._send(connection, {"refused": f"worker {local_rank} has {CONNECTIONS} connections already"})
            self._close(connection)
            return
        connection.local_rank = local_rank
        restore = None if given.restore is None else [given.restore.round, given.restore.step]
        self._send(connection, {"restore": restore})

    def _rank(self, connection: Connection) -> int | None:
        if self._assignment is None or connection.local_rank is None:
            return None
        return self._assignment.first_rank + connection.local_rank

    def _show(self, connection: Connection) -> None:
        """Hand out what this node has of the commit to restore, part after part."""
        restore = self._assignment.restore if self._assignment is not None else None
        parts = [] if restore is None else self._vault.stored(restore)
        for left, part in zip(range(len(parts) - 1, -1, -1), parts, strict=True):
            answer = {"rank": part.rank, "length": part.length, "digest": part.digest}
            self._send(connection, {**answer, "left": left}, part.number)
        if not parts:
            self._send(connection, {"left": -1})

    def _send(self, connection: Connection, answer: dict[str, Any], buffer: int | None = None) -> None:
        data, fds = json.dumps(answer).encode(), [] if buffer is None else [self._fds[buffer]]
        try:
            socket.send_fds(connection.channel, [data], fds)
        except OSError:  # it has gone, or reads nothing
            self._loop.call_soon(self._close, connection)

    def _close(self, connection: Connection) -> None:
        if self._connections.pop(connection.number, None) is None:
            return
        self._loop.remove_reader(connection.channel)
        connection.channel.close()
        rank = self._rank(connection)
        if rank is not None:
            self._handle(WorkerGone(rank, connection.number))


def make_buffer(size: int) -> int:
    """A memfd of this size whose pages are there; nobody can make it smaller. OSError without memory."""
    import fcntl

    fd = os.memfd_create(MEMFD, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.posix_fallocate(fd, 0, max(1, size))
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    except OSError:
        os.close(fd)
        raise
    return fd


def _parse(data: bytes) -> dict[str, Any]:
    if len(data) > MAX_MESSAGE:
        raise ValueError(f"it has more than {MAX_MESSAGE} bytes")
    try:
        message = json.loads(data)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(message, dict):
        raise ValueError("it is no JSON object")
    return message


def _digest(message: dict[str, Any], name: str) -> str:
    value = str(message[name])
    if len(value) > 64 or not value.isascii():
        raise ValueError(f"{name} must be a digest in hex")
    return value


def _natural(message: dict[str, Any], name: str) -> int:
    value: int = message[name]
    if isinstance(value, bool) or not 0 <= value <= 2**53:
        raise ValueError(f"{name} must be from 0 to 2**53")
    return value
