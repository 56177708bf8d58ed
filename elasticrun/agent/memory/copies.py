"""Copies parts of commits between nodes: takes in those of others; ``sending.py`` sends ours.

What is kept is decided in ``core/state/replicas.py``; what is said on the wire is in ``transfer.py``. Here
are the threads, sockets and buffers. Nothing listens before a worker of a world of several nodes has asked
for memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from elasticrun.agent.memory.buffers import Buffers, Pending
from elasticrun.agent.memory.sending import Sending, shut
from elasticrun.agent.memory.transfer import HEAD, PATIENCE, Reception, TransferError, line_length
from elasticrun.core.protocol.commits import KEY_BYTES, MAX_PARTS, Inlet
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

#: Threads for transfers that come in: one for each that the rules may have accepted at a time, as none may
#: wait for another. They accept fewer than ``MAX_PARTS`` of a commit, and few commits.
THREADS = 8 * MAX_PARTS
#: Connections at a time of peers that have not proved who they are; one more, and the oldest one goes.
STRANGERS = 64
#: Seconds between two signs to a sender that waits for an answer: it has ``PATIENCE``.
REMINDER = PATIENCE / 3
#: Seconds until the next look, if there is no descriptor for a connection.
PAUSE = 1.0


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
        self.sending = Sending(rate, on_change)
        self._on_change = on_change
        self._loop = asyncio.get_running_loop()
        self._key = os.urandom(KEY_BYTES)
        self._buffers = Buffers(self.handle, pending)
        self._answers: dict[Label, asyncio.Future[Accept | Decline]] = {}
        self._is_closed = False
        self._threads = ThreadPoolExecutor(THREADS, "elasticrun-copy-take")
        self._strangers: dict[socket.socket, None] = {}  # that have proved nothing yet, the oldest first
        self._incoming: set[socket.socket] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._later: asyncio.TimerHandle | None = None
        self._listener = _listen(host)
        self._loop.add_reader(self._listener, self._accept)

    @property
    def inlet(self) -> Inlet:
        """Where other nodes send copies to."""
        return Inlet(self._listener.getsockname()[1], self._key)

    def handle(self, event: ReplicaEvent) -> None:
        """Feed the rules, and carry out what they say."""
        if self._is_closed:
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

    def begin(self, event: RoundBegins) -> None:
        """A round begins, in which nothing is sent yet."""
        self.sending.begin()
        self.handle(event)

    def fd(self, buffer: Buffer) -> int:
        """The memory of a stored copy."""
        return self._buffers.fds[buffer.number]

    # -- in

    def _accept(self) -> None:
        try:
            channel, _ = self._listener.accept()
        except (BlockingIOError, ConnectionError):  # whoever called has gone
            return
        except OSError as error:  # no descriptor is left: look again later, as it still calls
            logger.warning("a node that sends a copy has to wait: %s", error.strerror)
            self._loop.remove_reader(self._listener)
            self._later = self._loop.call_later(PAUSE, self._loop.add_reader, self._listener, self._accept)
            return
        channel.setblocking(False)
        if len(self._strangers) >= STRANGERS:
            oldest = next(iter(self._strangers))  # who belongs here says so at once
            del self._strangers[oldest]
            shut(oldest)
        self._strangers[channel] = None
        self._start(self._receive(channel))

    async def _receive(self, channel: socket.socket) -> None:
        reception, label = Reception(channel, self._key), None
        try:
            offer = await asyncio.wait_for(self._greet(channel, reception), PATIENCE)
            self._strangers.pop(channel, None)
            self._incoming.add(channel)
            answer = await self._decide(channel, reception, offer)
            if isinstance(answer, Decline):
                await self._say(channel, reception.refusal(answer.reason, answer.is_here))
                return
            label = answer.commit, answer.group_rank
            pieces = zip(answer.buffers, offer.pieces, strict=True)
            targets = [self._buffers.view(number, piece.length) for number, piece in pieces]
            await self._say(channel, reception.taken)
            await self._loop.run_in_executor(self._threads, reception.take, targets)
            self.handle(Arrived(*label))
            label = None
            channel.setblocking(False)  # again
            await self._say(channel, reception.stored)
        # a RuntimeError: no thread can be started, or all is closed
        except (TransferError, OSError, asyncio.TimeoutError, RuntimeError) as error:
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

    async def _decide(self, channel: socket.socket, reception: Reception, offer: Offer) -> Accept | Decline:
        """Hear what the rules say of an offer, and keep its sender waiting until then."""
        answer = self._start(self._ask(offer))
        while not answer.done():
            await asyncio.wait({answer}, timeout=REMINDER)
            if not answer.done():
                # one that has gone is found out when its part is taken, as the rules wait for an end of that
                with contextlib.suppress(OSError, asyncio.TimeoutError):
                    await self._say(channel, reception.wait)
        return answer.result()

    async def _say(self, channel: socket.socket, what: bytes) -> None:
        await asyncio.wait_for(self._loop.sock_sendall(channel, what), PATIENCE)

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

    # -- the end

    def close(self) -> None:
        """Break everything off, and free the memory."""
        self._is_closed = True
        if self._later is not None:
            self._later.cancel()
        self._loop.remove_reader(self._listener)
        self._listener.close()
        self.sending.close()
        for channel in (*self._strangers, *self._incoming):
            shut(channel)
        for task in self._tasks:
            task.cancel()
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._buffers.close()

    def _start(self, work: Coroutine[None, None, Result]) -> asyncio.Task[Result]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


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
