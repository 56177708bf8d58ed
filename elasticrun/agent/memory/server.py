"""Gives workers memory for their state, which outlives them.

Theory. Each buffer is a memfd: it has no name in any file system, so nothing is left behind whoever is
killed, and it lives as long as any process has it open. The agent has; a worker gets the descriptor over a
Unix socket and maps it. What may be written where and when is the vault's to decide
(``core/state/vault.py``); this module only carries that out.

Who can speak here. The socket has an abstract, random name in this network namespace; a peer must run as
our user, which the kernel tells, and must know the token in its worker's environment. A message is at most
``MAX_MESSAGE`` bytes of JSON; one that makes no sense ends its connection, and the save of that connection
unless only digests are missing there.

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
from hmac import compare_digest
from typing import Any

from elasticrun.agent.memory.buffers import Buffers, Pending
from elasticrun.agent.memory.copies import Copies
from elasticrun.agent.memory.peering import OnStock, Peering
from elasticrun.agent.memory.relay import DataRelay
from elasticrun.agent.memory.stock import Stock
from elasticrun.agent.memory.storage_access import StorageAccess
from elasticrun.agent.memory.storing import StateStoring
from elasticrun.core.data.desk import MAX_DESKS
from elasticrun.core.protocol.bounds import MAX_SENTENCE
from elasticrun.core.protocol.commits import Holding, JudgeCommits
from elasticrun.core.protocol.messages import Assignment, DataAnswer
from elasticrun.core.protocol.storing import StoreOrder
from elasticrun.core.state.buffers import Buffer
from elasticrun.core.state.events import (
    Grant,
    Hold,
    Judged,
    Pinned,
    Refuse,
    RoundBegins,
    SaveBegins,
    SaveCopied,
    SaveEnds,
    Stored,
    Tick,
    VaultEffect,
    VaultEvent,
    WorkerGone,
)
from elasticrun.core.state.vault import Vault
from elasticrun.rpc.packing import MAX_MESSAGE, make_room, packed
from elasticrun.rpc.records import to_json

logger = logging.getLogger(__name__)

#: Connections that one worker may have at a time: one for each shared dataset of a round, and some that save
#: and restore, also in programs that it starts.
CONNECTIONS = MAX_DESKS + 8
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
        self,
        local_world_size: int,
        token: str,
        on_stock: OnStock,
        peering: Peering | None,
        relay: DataRelay | None,
        storage: StorageAccess | None = None,
    ) -> None:
        """``token``: what each worker has to know. ``on_stock`` is called from the loop whenever what it is
        told has changed. ``peering``: None if other nodes send no copies here, nor this one to them.
        ``relay``: for what workers ask about shared data; None: nobody answers that. ``storage``: None if the
        job has none.
        """
        self._token = token
        self._loop = asyncio.get_running_loop()
        self._size = local_world_size
        self._on_stock = on_stock
        self._peering = peering
        self._relay = relay
        self._vault = Vault()
        self._own: tuple[Holding, ...] = ()  # what our workers saved
        self._pending = Pending()
        self._buffers = Buffers(self._handle, self._pending)
        self._stock = Stock(self._vault, self._buffers)
        self._storing = StateStoring(storage, self._stock.held, self._pin, self._tell)
        self._told_first = {} if storage is None else {"storage": storage.url}
        self._assignment: Assignment | None = None
        self._connections: dict[int, Connection] = {}  # by number; all are of the round that runs
        self._numbers = itertools.count()
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, assignment: Assignment) -> None:
        """Workers of a round are about to start; nothing is left of those before."""
        for connection in list(self._connections.values()):
            self._close(connection, gave_up=True)  # the master has chosen already what is restored
        self._assignment = assignment
        begins = RoundBegins.of(assignment, self._size)
        if self._stock.copies is not None:
            self._stock.copies.begin(begins)
        self._handle(begins)
        peering = self._peering
        if peering is None or self._stock.copies is not None:
            return
        if assignment.group_world_size > 1 or peering.expects_others:
            self._open_copies(peering, begins)

    def judge(self, verdict: JudgeCommits) -> None:
        """Hear what became of the commits of the round that runs."""
        event = Judged(verdict.kept, verdict.void, verdict.safe, verdict.copying)
        if self._stock.copies is not None:
            self._stock.copies.sending.cut_off(unless=verdict.copying)
            self._stock.copies.handle(event)
        self._handle(event)
        if self._stock.copies is not None and verdict.copying is not None and verdict.copies:
            commit, copies = verdict.copying, verdict.copies
            orders = self._stock.orders(commit, copies)
            self._stock.copies.sending.send(commit, verdict.number, copies, orders)

    def store(self, order: StoreOrder | None) -> None:
        """Hear what has to be written to the storage from now on."""
        self._storing.obey(order)

    def close(self) -> None:
        """Close everything; a buffer that is being made is closed once it is there.

        The memory is freed once no worker maps it.
        """
        for connection in list(self._connections.values()):
            self._close(connection, gave_up=True)
        if self._timer is not None:
            self._timer.cancel()
        self._storing.close()
        if self._stock.copies is not None:
            self._stock.copies.close()
        self._buffers.close()

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
            # The vault answers only those who are here: who hangs up waits for nothing.
            case Grant(buffer=buffer, divides=divides, peer=peer, lost=lost):
                given: dict[str, Any] = {
                    "buffer": buffer,
                    "size": self._buffers.sizes[buffer],
                    "divides": divides,
                    "lost": lost,
                }
                alive = list(self._buffers.sizes)
                self._send(self._connections[peer], {**given, "alive": alive}, self._buffers.fds[buffer])
            case Stored(peer=peer):
                self._send(self._connections[peer], {"ended": True})
            case Refuse(reason=reason, peer=peer):
                self._send(self._connections[peer], {"refused": reason})
            case Hold(holdings):
                self._own = holdings
                self._tell()
            case _:
                self._buffers.carry_out(effect)

    def _tell(self) -> None:
        """Tell what this node holds, where it takes copies in, what it has sent, and how a writer fares."""
        copies, report = self._stock.copies, self._storing.report
        if copies is None:
            self._on_stock(self._own, None, None, report)
        else:
            self._on_stock(copies.replicas.holdings(self._own), copies.inlet, copies.sending.copied, report)

    def _pin(self, pinned: Pinned) -> None:
        if self._stock.copies is not None:
            self._stock.copies.handle(pinned)
        self._handle(pinned)

    # -- copies

    def _open_copies(self, peering: Peering, begins: RoundBegins) -> None:
        try:
            self._stock.copies = Copies(peering.host, peering.rate, self._pending, self._tell)
        except OSError as error:
            why = error.strerror or str(error)
            logger.warning("this node exchanges no copies of saved states: no socket can be made (%s)", why)
        else:
            self._stock.copies.begin(begins)
            self._tell()

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
            make_room(channel)
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
        except (ValueError, RecursionError) as error:  # no message of a worker ends the agent
            self._send(connection, {"refused": f"this message makes no sense: {error}"[:MAX_SENTENCE]})
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
                digest = _digest(message, "digest", least=1)
                self._handle(SaveEnds(rank, step, length, digest, own, connection.number))
            case {"ask": "copied", "step": int(), "length": int(), "digest": str(), "own": bool(own)}:
                step, length = _natural(message, "step"), _natural(message, "length")
                digest = _digest(message, "digest", least=1)
                self._handle(SaveCopied(rank, step, length, digest, own, connection.number))
            case {"ask": "give up"}:
                self._handle(WorkerGone(rank, connection.number, gave_up=True))
            case {"ask": "buffer", "number": int()}:
                self._show_buffer(connection, rank, _natural(message, "number"))
            case {"ask": "restore", "from": int()}:
                self._show(connection, _natural(message, "from"))
            case {"ask": "data", "kind": str(kind), "body": dict() | str() as body}:
                self._pass_on(connection, kind, body)
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
        self._send(connection, {"restore": restore, **self._told_first})

    def _pass_on(self, connection: Connection, kind: str, body: dict[str, Any] | str) -> None:
        """Pass on what a worker asks about shared data."""
        if self._relay is None or self._assignment is None or connection.local_rank is None:
            raise ValueError("nobody answers that here")

        def reply(answer: DataAnswer) -> None:
            self._send(connection, {"data": packed(to_json(answer))})

        worker = self._assignment.round, connection.local_rank
        self._relay.ask(kind, body, worker, connection.number, reply)

    def _rank(self, connection: Connection) -> int | None:
        if self._assignment is None or connection.local_rank is None:
            return None
        return self._assignment.first_rank + connection.local_rank

    def _show(self, connection: Connection, first: int) -> None:
        """Hand out what this node has of the commit to restore: the part of the next rank from ``first`` on.

        One for each ask, as the kernel holds only so many answers and descriptors for who is slow. Parts are
        told apart by their ranks, as more of them may come meanwhile.
        """
        restore = self._assignment.restore if self._assignment is not None else None
        parts = [] if restore is None else self._stock.each_rank(restore)
        found = min((each for each in parts if each[0].rank >= first), key=_rank_of, default=None)
        if found is None:
            self._send(connection, {"rank": None})
        else:
            part, fd = found
            self._send(connection, {"rank": part.rank, "length": part.length, "digest": part.digest}, fd)

    def _show_buffer(self, connection: Connection, rank: int, number: int) -> None:
        """Hand out a buffer that a rank is likely to write into, for it to be mapped beforehand."""
        buffer = self._vault.shelf.next_of(rank, number)
        if buffer is None:
            self._send(connection, {"buffer": None})
        else:
            size, fd = self._buffers.sizes[buffer.number], self._buffers.fds[buffer.number]
            self._send(connection, {"buffer": buffer.number, "size": size}, fd)

    def _send(self, connection: Connection, answer: dict[str, Any], fd: int | None = None) -> None:
        try:
            socket.send_fds(connection.channel, [json.dumps(answer).encode()], [] if fd is None else [fd])
        except OSError:  # it has gone, or reads nothing
            self._loop.call_soon(self._close, connection)

    def _close(self, connection: Connection, gave_up: bool = False) -> None:
        if self._connections.pop(connection.number, None) is None:
            return
        self._loop.remove_reader(connection.channel)
        connection.channel.close()
        if self._relay is not None:
            self._relay.forget(connection.number)
        rank = self._rank(connection)
        if rank is not None:
            self._handle(WorkerGone(rank, connection.number, gave_up))


def _rank_of(part: tuple[Buffer, int]) -> int:
    return part[0].rank


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


def _digest(message: dict[str, Any], name: str, least: int = 0) -> str:
    value = str(message[name])
    if not least <= len(value) <= 64 or not value.isascii():
        raise ValueError(f"{name} must be a digest in hex")
    return value


def _natural(message: dict[str, Any], name: str) -> int:
    value: int = message[name]
    if isinstance(value, bool) or not 0 <= value <= 2**53:
        raise ValueError(f"{name} must be from 0 to 2**53")
    return value
