"""Copies parts of commits between nodes: sends ours when the master says so, and takes in those of others.

What is kept is decided in ``core/state/replicas.py``; what is said on the wire is in ``transfer.py``. Here
are the threads, sockets and buffers. Nothing listens before a worker of a world of several nodes has asked
for memory.

A sender is cut off before the memory that it reads can be written again. What it sent is then without its
proof, so no receiver stores a mixture of two states.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import mmap
import os
import socket
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

from elasticrun.agent.memory.buffers import Buffers, Pending
from elasticrun.agent.memory.transfer import (
    HEAD,
    PATIENCE,
    Pace,
    Reception,
    TransferError,
    line_length,
    send,
)
from elasticrun.core.protocol.commits import KEY_BYTES, CommitId, Copy, Inlet, Sent
from elasticrun.core.state.buffers import Buffer
from elasticrun.core.state.events import (
    Accept,
    Arrived,
    CopiesChanged,
    Decline,
    Interrupted,
    Offer,
    Offered,
    ReplicaEvent,
    RoundBegins,
)
from elasticrun.core.state.replicas import Label, Replicas

logger = logging.getLogger(__name__)
Result = TypeVar("Result")

#: Transfers at a time, in each direction; further ones wait.
THREADS = 4
#: Connections at a time of peers that have not proved who they are; one more, and the oldest one goes.
STRANGERS = 64
_CONNECT_TIMEOUT = 10.0  # seconds


class Order(NamedTuple):
    """One part to send."""

    copy: Copy  # where to
    offer: Offer
    fds: list[int]  # of its pieces


class Copies:
    """The copies that one node sends and holds. Made inside the running loop."""

    def __init__(self, host: str, rate: float, pending: Pending, on_change: Callable[[], None]) -> None:
        """``host``: the address to listen at, if it is one of this host. ``rate``: the most bytes a second
        that are sent; 0: no bound. ``on_change`` is called from the loop when this node holds other copies,
        or has sent all that it was told to.

        Raises:
            OSError: it cannot listen.
        """
        self.replicas = Replicas()
        self.copied: Sent | None = None  # the newest order with which we are done
        self._on_change = on_change
        self._loop = asyncio.get_running_loop()
        self._key = os.urandom(KEY_BYTES)
        self._buffers = Buffers(self.handle, pending)
        self._answers: dict[Label, asyncio.Future[Accept | Decline]] = {}
        self._stopping = threading.Event()
        self._pace = Pace(rate, self._stopping)
        self._senders = ThreadPoolExecutor(THREADS, "elasticrun-copy-send")
        self._receivers = ThreadPoolExecutor(THREADS, "elasticrun-copy-take")
        self._outgoing: set[socket.socket] = set()
        self._strangers: dict[socket.socket, None] = {}  # that have proved nothing yet, the oldest first
        self._incoming: set[socket.socket] = set()
        self._sending: CommitId | None = None
        self._ordered: tuple[int, Sequence[Copy]] | None = None  # the newest order, and its number
        self._under_way: dict[tuple[CommitId, Copy], asyncio.Task[bool]] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._listener = _listen(host)
        self._loop.add_reader(self._listener, self._accept)

    @property
    def inlet(self) -> Inlet:
        """Where other nodes send copies to."""
        return Inlet(self._listener.getsockname()[1], self._key)

    def handle(self, event: ReplicaEvent) -> None:
        """Feed the rules, and carry out what they say."""
        if self._stopping.is_set():
            return
        for effect in self.replicas.handle(event):
            match effect:
                case Accept(commit, group_rank) | Decline(commit, group_rank):
                    answer = self._answers.pop((commit, group_rank), None)
                    if answer is not None and not answer.done():
                        answer.set_result(effect)
                case CopiesChanged():
                    self._on_change()
                case _:
                    self._buffers.carry_out(effect)

    def fd(self, buffer: Buffer) -> int:
        """The memory of a stored copy."""
        return self._buffers.fds[buffer.number]

    # -- out

    def send(self, commit: CommitId, number: int, copies: Sequence[Copy], orders: Sequence[Order]) -> None:
        """Send these parts; when all is done that can be, ``copied`` tells of this order.

        ``orders``: those of ``copies`` that are here. What is under way already, by an earlier order for the
        same commit, is waited for and not sent twice.
        """
        if (number, copies) == self._ordered:
            return
        self._ordered, self._sending, self.copied = (number, copies), commit, None
        tasks = {copies.index(order.copy): self._order(commit, order) for order in orders}
        self._start(self._send_all(Sent(commit, number), len(copies), tasks))

    def begin(self, event: RoundBegins) -> None:
        """A round begins, in which nothing is sent yet."""
        self.cut_off()
        self.copied = self._ordered = None
        self.handle(event)

    def cut_off(self, unless: CommitId | None = None) -> None:
        """Break off what is sent, unless it is this commit: its memory may be written from now on."""
        if self._sending is None or self._sending == unless:
            return
        self._sending = self._ordered = None
        for channel in self._outgoing:
            _shut(channel)

    def _order(self, commit: CommitId, order: Order) -> asyncio.Task[bool]:
        label = commit, order.copy
        if label not in self._under_way:
            task = self._start(self._send(commit, order, _mapped(order)))
            task.add_done_callback(lambda _: self._under_way.pop(label))
            self._under_way[label] = task
        return self._under_way[label]

    async def _send_all(self, sent: Sent, count: int, tasks: dict[int, asyncio.Task[bool]]) -> None:
        """Wait for copies, by their places in an order of so many, and tell that it is done."""
        arrived = dict(zip(tasks, await asyncio.gather(*tasks.values()), strict=True))
        if self._sending == sent.commit and self._ordered is not None and self._ordered[0] == sent.number:
            missed = tuple(place for place in range(count) if not arrived.get(place, False))
            self._sending, self.copied = None, replace(sent, missed=missed)
            self._on_change()

    async def _send(self, commit: CommitId, order: Order, pieces: list[memoryview]) -> bool:
        """Send a part. Returns whether the receiver has it."""
        where = order.copy.address, order.copy.inlet.port
        try:
            channel = await asyncio.wait_for(self._connect(*where), _CONNECT_TIMEOUT)
        except (OSError, asyncio.TimeoutError) as error:  # the latter is an OSError from Python 3.11 on
            self._miss(commit, where, _why(error))
            return False
        self._outgoing.add(channel)
        try:
            if self._sending != commit:
                return False
            key, offer = order.copy.inlet.key, order.offer
            await self._loop.run_in_executor(self._senders, send, channel, key, offer, pieces, self._pace)
            return True
        except TransferError as error:
            self._miss(commit, where, str(error))
            return False
        finally:
            self._outgoing.discard(channel)
            channel.close()

    async def _connect(self, address: str, port: int) -> socket.socket:
        found = await self._loop.getaddrinfo(address, port, type=socket.SOCK_STREAM)
        error: OSError | None = None
        for family, kind, protocol, _, where in found:
            channel = socket.socket(family, kind, protocol)
            channel.setblocking(False)
            try:
                await self._loop.sock_connect(channel, where)
            except OSError as failure:
                error = failure
                channel.close()
            except BaseException:
                channel.close()
                raise
            else:
                return channel
        raise error or OSError("it has no address")

    def _miss(self, commit: CommitId, where: tuple[str, int], why: str) -> None:
        if self._sending == commit:  # else it was cut off
            logger.warning("no copy of %s could be sent to %s port %d: %s", commit, *where, why)

    # -- in

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            channel, _ = self._listener.accept()
            channel.setblocking(False)
            if len(self._strangers) >= STRANGERS:
                oldest = next(iter(self._strangers))  # who belongs here says so at once
                del self._strangers[oldest]
                _shut(oldest)
            self._strangers[channel] = None
            self._start(self._receive(channel))

    async def _receive(self, channel: socket.socket) -> None:
        reception, label = Reception(channel, self._key), None
        try:
            offer = await asyncio.wait_for(self._greet(channel, reception), PATIENCE)
            self._strangers.pop(channel, None)
            self._incoming.add(channel)
            answer = await self._ask(offer)
            if isinstance(answer, Decline):
                await self._in_thread(reception.refuse, answer.reason, answer.is_here)
                return
            label = answer.commit, answer.group_rank
            pieces = zip(answer.buffers, offer.pieces, strict=True)
            targets = [self._buffers.view(number, piece.length) for number, piece in pieces]
            await self._in_thread(reception.take, targets)
            self.handle(Arrived(*label))
            label = None
            await self._in_thread(reception.confirm)
        except (TransferError, OSError, asyncio.TimeoutError) as error:
            logger.info("a copy did not arrive: %s", str(error) or "the peer said nothing")
        finally:
            if label is not None:
                self.handle(Interrupted(*label))
            self._strangers.pop(channel, None)
            self._incoming.discard(channel)
            channel.close()

    async def _greet(self, channel: socket.socket, reception: Reception) -> Offer:
        """Hear what a peer offers, and that it belongs to the job."""
        await self._loop.sock_sendall(channel, reception.challenge)
        length = line_length(await self._read(channel, HEAD))
        return reception.understand(await self._read(channel, length))

    async def _read(self, channel: socket.socket, length: int) -> bytes:
        data = b""
        while len(data) < length:
            more = await self._loop.sock_recv(channel, length - len(data))
            if not more:
                raise TransferError("the connection was closed")
            data += more
        return data

    async def _ask(self, offer: Offer) -> Accept | Decline:
        label = offer.commit, offer.part.group_rank
        if label in self._answers:
            return Decline(*label, "it is being received already")
        answer: asyncio.Future[Accept | Decline] = self._loop.create_future()
        self._answers[label] = answer
        self.handle(Offered(offer))
        return await answer

    async def _in_thread(self, work: Callable[..., Result], *args: object) -> Result:
        return await self._loop.run_in_executor(self._receivers, work, *args)

    # -- the end

    def close(self) -> None:
        """Break everything off, and free the memory."""
        self._stopping.set()
        self._loop.remove_reader(self._listener)
        self._listener.close()
        self.cut_off()
        for channel in (*self._strangers, *self._incoming):
            _shut(channel)
        for task in self._tasks:
            task.cancel()
        self._senders.shutdown(wait=False, cancel_futures=True)
        self._receivers.shutdown(wait=False, cancel_futures=True)
        self._buffers.close()

    def _start(self, work: Coroutine[None, None, Result]) -> asyncio.Task[Result]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _why(error: Exception) -> str:
    """Why nobody can be reached, in words; asyncio writes addresses into an error's text."""
    match error:
        case OSError(errno=int(number)) if number > 0:
            return os.strerror(number)
        case OSError(strerror=str(text)):
            return text
    return "nothing answers there"


def _listen(host: str) -> socket.socket:
    """A listener at an address of this host; at all of them if ``host`` is a name, or no address of it.

    A name is not looked up: that may take long. What comes over another interface is proved as well.
    """
    for family in (socket.AF_INET, socket.AF_INET6):
        with contextlib.suppress(OSError):
            socket.inet_pton(family, host)
            return _nonblocking(socket.create_server((host, 0), family=family))
    if socket.has_dualstack_ipv6():
        return _nonblocking(socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True))
    return _nonblocking(socket.create_server(("", 0)))


def _nonblocking(listener: socket.socket) -> socket.socket:
    listener.setblocking(False)
    return listener


def _shut(channel: socket.socket) -> None:
    """Break a connection off, so that whoever waits for it finds out."""
    with contextlib.suppress(OSError):
        channel.shutdown(socket.SHUT_RDWR)


def _mapped(order: Order) -> list[memoryview]:
    """The bytes of each piece; they stay readable when the descriptors are closed."""
    return [
        memoryview(mmap.mmap(fd, max(1, piece.length), mmap.MAP_SHARED, mmap.PROT_READ))[: piece.length]
        for piece, fd in zip(order.offer.pieces, order.fds, strict=True)
    ]
