"""Gives workers memory for their state, which outlives them.

Theory. Each buffer is a memfd: it has no name in any file system, so nothing is left behind whoever is
killed, and it lives as long as any process has it open. The agent has; a worker gets the descriptor over a
Unix socket and maps it. What may be written where and when is the vault's to decide
(``core/state/vault.py``); this module only carries that out.

Who can speak here. The socket has an abstract, random name in this network namespace; a peer must run as
our user, which the kernel tells, and must know the token in its worker's environment. A message is at most
``MAX_MESSAGE`` bytes of JSON; one that makes no sense ends its connection, and that worker's save. Whatever
a worker says can only spoil its own part.

The pages of a buffer are there before a worker gets it: the kernel clears them, which takes longer than to
write them.
"""

from __future__ import annotations

import asyncio
import contextlib
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
    Tick,
    VaultEffect,
    VaultEvent,
    WorkerGone,
)
from elasticrun.core.state.vault import Vault

logger = logging.getLogger(__name__)

MAX_MESSAGE = 64 << 10
#: Connections at a time, for each worker: the worker's own, and one of a program that it replaces itself by.
CONNECTIONS = 8
MEMFD = "elasticrun-state"
_CREDENTIALS = struct.Struct("3i")  # of a peer: pid, uid, gid


class Connection:
    """One process of a worker that saves or restores."""

    def __init__(self, channel: socket.socket) -> None:
        self.channel = channel
        self.local_rank: int | None = None  # None: it has not said who it is
        self.round = -1
        self.saving: int | None = None  # the step that it saves


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
        self._connections: dict[int, Connection] = {}  # by descriptor
        self._timer: asyncio.TimerHandle | None = None
        self._making: set[asyncio.Future[None]] = set()

    def begin(self, assignment: Assignment) -> None:
        """Workers of a round are about to start; nothing is left of those before."""
        for connection in list(self._connections.values()):
            self._close(connection)
        self._assignment = assignment
        ranks = tuple(range(assignment.first_rank, assignment.first_rank + self._size))
        place = assignment.group_rank, assignment.group_world_size, ranks, assignment.restore
        self._handle(RoundBegins(assignment.round, *place))

    def judge(self, kept: CommitId | None, void: CommitId | None) -> None:
        """Hear what became of the commits of the round that runs."""
        self._handle(Judged(kept, void))

    async def close(self) -> None:
        """Close everything. The memory is freed once no worker maps it."""
        for connection in list(self._connections.values()):
            self._close(connection)
        if self._timer is not None:
            self._timer.cancel()
        await asyncio.gather(*self._making, return_exceptions=True)
        for fd in self._fds.values():
            os.close(fd)
        self._fds.clear()

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
            case Grant(rank, step, buffer, divides):
                given: dict[str, Any] = {"buffer": buffer, "size": self._sizes[buffer], "divides": divides}
                self._answer(rank, step, {**given, "alive": list(self._sizes)}, buffer)
            case Refuse(rank, step, reason):
                self._answer(rank, step, {"refused": reason})
            case MakeBuffer(buffer, size):
                self._make(buffer, size)
            case DropBuffer(buffer):
                self._sizes.pop(buffer, None)
                if buffer in self._fds:
                    os.close(self._fds.pop(buffer))
            case Hold(holdings):
                self._on_holdings(holdings)

    def _answer(self, rank: int, step: int, answer: dict[str, Any], buffer: int | None = None) -> None:
        for connection in self._connections.values():
            if connection.saving == step and self._rank(connection) == rank:
                if buffer is None:
                    connection.saving = None
                self._send(connection, answer, buffer)
                return
        if buffer is not None:  # the worker has gone meanwhile
            self._loop.call_soon(self._handle, WorkerGone(rank))

    # -- buffers

    def _make(self, buffer: int, size: int) -> None:
        room = free_bytes()
        untouched = sum(size for number, size in self._sizes.items() if number not in self._fds)
        if room is None or size + untouched > room:
            left = "an unknown number of" if room is None else max(0, room - untouched)
            reason = f"{size} bytes are needed, and {left} bytes of memory can be taken"
            self._loop.call_soon(self._handle, BufferRefused(buffer, reason))
            return
        self._sizes[buffer] = size
        done = self._loop.run_in_executor(None, make_buffer, size)
        self._making.add(task := asyncio.ensure_future(self._made(buffer, done)))
        task.add_done_callback(self._making.discard)

    async def _made(self, buffer: int, done: asyncio.Future[int]) -> None:
        try:
            fd = await done
        except OSError as error:
            self._sizes.pop(buffer, None)
            self._handle(BufferRefused(buffer, f"the kernel gives no memory: {error.strerror}"))
            return
        if buffer not in self._sizes:  # it was dropped meanwhile
            os.close(fd)
            return
        self._fds[buffer] = fd
        self._handle(BufferMade(buffer))

    # -- connections

    def accept(self, listener: socket.socket) -> None:
        """Take the next connection, if its process runs as our user and there are not too many."""
        with contextlib.suppress(BlockingIOError, ConnectionError):
            channel, _ = listener.accept()
            _, uid, _ = _CREDENTIALS.unpack(
                channel.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
            )
            if uid != os.getuid() or len(self._connections) >= CONNECTIONS * self._size:
                channel.close()
                return
            channel.setblocking(False)
            self._connections[channel.fileno()] = connection = Connection(channel)
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
            case {"ask": "hello", "token": str(token), "local_rank": int(local_rank), "round": int(round_)}:
                self._greet(connection, token, local_rank, round_)
            case _ if rank is None:
                raise ValueError("it must begin with hello")
            case {"ask": "begin", "step": int(), "whole": int(), "share": int(), "contents": str()}:
                sizes = _natural(message, "step"), _natural(message, "whole"), _natural(message, "share")
                contents = _digest(message, "contents")
                if any(
                    each.saving is not None and self._rank(each) == rank
                    for each in self._connections.values()
                ):
                    self._send(connection, {"refused": f"rank {rank} has begun a save that has not ended"})
                    return
                connection.saving = sizes[0]
                self._handle(SaveBegins(rank, *sizes, contents))
            case {"ask": "end", "step": int(), "length": int(), "digest": str(), "own": bool(own)}:
                step, length = _natural(message, "step"), _natural(message, "length")
                digest = _digest(message, "digest")
                if connection.saving == step:
                    connection.saving = None
                self._handle(SaveEnds(rank, step, length, digest, own))
                self._send(connection, {"ended": True})
            case {"ask": "give up"}:
                connection.saving = None
                self._handle(WorkerGone(rank))
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
        connection.local_rank, connection.round = local_rank, round_
        restore = None if given.restore is None else [given.restore.round, given.restore.step]
        self._send(connection, {"restore": restore})

    def _rank(self, connection: Connection) -> int | None:
        given = self._assignment
        if given is None or connection.local_rank is None or connection.round != given.round:
            return None
        return given.first_rank + connection.local_rank

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
        number = connection.channel.fileno()
        if self._connections.pop(number, None) is None:
            return
        self._loop.remove_reader(connection.channel)
        connection.channel.close()
        rank = self._rank(connection)
        if connection.saving is not None and rank is not None:
            self._handle(WorkerGone(rank))


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
