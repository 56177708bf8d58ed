"""Sends parts of commits to other nodes, as the master orders it. What is said is in ``transfer.py``.

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
from typing import Any, NamedTuple, TypeVar

from elasticrun.agent.memory.transfer import Pace, TransferError, send
from elasticrun.core.protocol.commits import CommitId, Copy, Sent
from elasticrun.core.state.events import Offer

logger = logging.getLogger(__name__)
Result = TypeVar("Result")

#: Transfers at a time; further ones wait, and call nobody before their turn.
THREADS = 4
_CONNECT_TIMEOUT = 10.0  # seconds


class Order(NamedTuple):
    """One part to send."""

    copy: Copy  # where to
    offer: Offer
    fds: list[int]  # of its pieces


class Ordered(NamedTuple):
    """What the master orders. One that has started anew counts its orders from the beginning."""

    commit: CommitId
    number: int
    copies: Sequence[Copy]


class Transfer:
    """One part of a commit on its way to one node."""

    def __init__(self, commit: CommitId, copy: Copy) -> None:
        self.commit = commit
        self.where = copy.address, copy.inlet.port
        self.key = copy.inlet.key
        self.channel: socket.socket | None = None  # while it is connected
        self.is_cut = False
        self.task: asyncio.Task[bool]  # whether the receiver has it

    def cut_off(self) -> None:
        """Send nothing any more: what is sent may change from now on."""
        self.is_cut = True
        if self.channel is not None:
            shut(self.channel)


class Sending:
    """What one node sends. Made inside the running loop."""

    def __init__(self, rate: float, on_done: Callable[[], None]) -> None:
        """``rate``: the most bytes a second; 0: no bound. ``on_done`` is called from the loop when all was
        sent that could be.
        """
        self.copied: Sent | None = None  # the newest order with which we are done
        self._on_done = on_done
        self._loop = asyncio.get_running_loop()
        self._stopping = threading.Event()
        self._pace = Pace(rate, self._stopping)
        self._threads = ThreadPoolExecutor(THREADS, "elasticrun-copy-send")
        self._turns = asyncio.Semaphore(THREADS)
        self._sending: CommitId | None = None
        self._ordered: Ordered | None = None  # the newest
        self._under_way: dict[tuple[CommitId, Copy], Transfer] = {}
        self._tasks: set[asyncio.Task[Any]] = set()

    def send(self, commit: CommitId, number: int, copies: Sequence[Copy], orders: Sequence[Order]) -> None:
        """Send these parts; when all is done that can be, ``copied`` tells of this order.

        ``orders``: those of ``copies`` that are here. What is under way already, by an earlier order for the
        same commit, is waited for and not sent twice.
        """
        ordered = Ordered(commit, number, copies)
        if ordered == self._ordered:
            return
        self._ordered, self._sending, self.copied = ordered, commit, None
        begun = {copies.index(order.copy): self._order(commit, order) for order in orders}
        tasks = {place: task for place, task in begun.items() if task is not None}
        self._start(self._send_all(ordered, tasks))

    def begin(self) -> None:
        """A round begins, in which nothing is sent yet."""
        self.cut_off()
        self.copied = self._ordered = None

    def cut_off(self, unless: CommitId | None = None) -> None:
        """Break off what is sent, unless it is this commit: its memory may be written from now on."""
        if self._sending is not None and self._sending != unless:
            self._sending = self._ordered = None
        # also what an earlier order began: that a later one is done does not end it
        for label, transfer in list(self._under_way.items()):
            if transfer.commit != unless:
                transfer.cut_off()
                del self._under_way[label]

    def close(self) -> None:
        """Break everything off."""
        self._stopping.set()
        self.cut_off()
        for task in self._tasks:
            task.cancel()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _order(self, commit: CommitId, order: Order) -> asyncio.Task[bool] | None:
        """Begin to send a part, unless that is under way. None: its memory cannot be mapped."""
        label = commit, order.copy
        if label in self._under_way:
            return self._under_way[label].task
        transfer = Transfer(commit, order.copy)
        try:
            pieces = _mapped(order)
        except OSError as error:  # to map a descriptor takes one more
            self._miss(transfer, _why(error))
            return None
        transfer.task = self._start(self._send(transfer, order.offer, pieces))
        transfer.task.add_done_callback(lambda _: self._forget(label, transfer))
        self._under_way[label] = transfer
        return transfer.task

    def _forget(self, label: tuple[CommitId, Copy], transfer: Transfer) -> None:
        if self._under_way.get(label) is transfer:  # else it was cut off, and begun anew
            del self._under_way[label]

    async def _send_all(self, ordered: Ordered, tasks: dict[int, asyncio.Task[bool]]) -> None:
        """Wait for copies, by their places in an order, and tell that it is done."""
        arrived = dict(zip(tasks, await asyncio.gather(*tasks.values()), strict=True))
        if self._ordered is ordered:  # else it was cut off, whatever was ordered since
            missed = tuple(place for place in range(len(ordered.copies)) if not arrived.get(place, False))
            self._sending, self.copied = None, Sent(ordered.commit, ordered.number, missed)
            self._on_done()

    async def _send(self, transfer: Transfer, offer: Offer, pieces: list[memoryview]) -> bool:
        """Send a part when it is its turn. Returns whether the receiver has it."""
        async with self._turns:
            return not transfer.is_cut and await self._send_now(transfer, offer, pieces)

    async def _send_now(self, transfer: Transfer, offer: Offer, pieces: list[memoryview]) -> bool:
        try:
            channel = await asyncio.wait_for(self._connect(*transfer.where), _CONNECT_TIMEOUT)
        except (OSError, asyncio.TimeoutError) as error:  # the latter is an OSError from Python 3.11 on
            self._miss(transfer, _why(error))
            return False
        transfer.channel = channel
        try:
            if transfer.is_cut:
                return False
            what = channel, transfer.key, offer, pieces, self._pace
            await self._loop.run_in_executor(self._threads, send, *what)
            return True
        except (TransferError, RuntimeError) as error:  # the latter: no thread can be started
            self._miss(transfer, str(error))
            return False
        finally:
            transfer.channel = None
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

    def _miss(self, transfer: Transfer, why: str) -> None:
        if not transfer.is_cut:
            where = *transfer.where, why
            logger.warning("no copy of %s could be sent to %s port %d: %s", transfer.commit, *where)

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


def shut(channel: socket.socket) -> None:
    """Break a connection off, so that whoever waits for it finds out."""
    with contextlib.suppress(OSError):
        channel.shutdown(socket.SHUT_RDWR)


def _mapped(order: Order) -> list[memoryview]:
    """The bytes of each piece; they stay readable when the descriptors are closed.

    Raises:
        OSError: they cannot be mapped.
    """
    return [
        memoryview(mmap.mmap(fd, max(1, piece.length), mmap.MAP_SHARED, mmap.PROT_READ))[: piece.length]
        for piece, fd in zip(order.offer.pieces, order.fds, strict=True)
    ]
