"""The stream of a node that is alone: its master is its own child, and a pair of sockets joins the two.

Both ends are the same program, nobody else can reach the sockets, and the kernel closes an end whose process
dies. So this stream does without what makes one through a network safe: no gRPC, no protobuf, no proofs,
limits and pings. None of it is imported, which saves each process 60 to 100 ms of CPU time at its
start and 17 MB of memory.

Invariant: one pair of sockets carries one stream to one master, and no other after it. For another stream
the agent starts another master, which finds the job in its journal.

A message is a line: the name of its type and its fields as JSON, read by the types' own annotations.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import socket
import termios
import typing
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from elasticrun.clock import happens
from elasticrun.core.protocol.messages import (
    AgentMessage,
    Heartbeat,
    Hello,
    MasterMessage,
    Trust,
    Welcome,
)
from elasticrun.rpc import records
from elasticrun.rpc.records import fitted, from_json, to_json
from elasticrun.rpc.stream import StreamBrokenError, attach, welcome_in
from elasticrun.rpc.text import clean

if TYPE_CHECKING:
    from elasticrun.rpc.session import SessionHandler

#: Bytes that may wait for an end that does not read, and seconds that a closing one may take to write them.
MAX_UNREAD = 4 << 20
FLUSH_TIMEOUT = 5.0
_CLOSE_TIMEOUT = 2.0  # seconds
_NEARLY = 0.9  # of the time between two heartbeats: a timer may come a little early
_WHO = "the master of this node"
_KINDS: dict[str, type[AgentMessage | MasterMessage]] = {
    kind.__name__: kind for kind in (*typing.get_args(AgentMessage), *typing.get_args(MasterMessage))
}


def prepare() -> None:
    """Look at all messages now: for a process whose forks exchange them."""
    records.prepare(_KINDS.values())


def _encode(message: AgentMessage | MasterMessage) -> bytes:
    # A user's program may have written a number that the other end refuses, as in ``codec``.
    text = json.dumps([type(message).__name__, to_json(fitted(message))], ensure_ascii=False)
    return clean(text).encode() + b"\n"


def _decode(line: bytes) -> AgentMessage | MasterMessage:
    name, fields = json.loads(line)
    return from_json(_KINDS[name], fields)


class _End(asyncio.Protocol):
    """One end of the pair."""

    def __init__(self, take: Callable[[Any], None], ended: Callable[[], None]) -> None:
        self._take = take
        self._on_end = ended
        self._begun = b""  # a line that has not come to its end
        self._transport: asyncio.Transport
        self.over = asyncio.Event()  # this end is closed

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        *lines, self._begun = (self._begun + data).split(b"\n")
        for line in lines:
            self._take(_decode(line))

    def connection_lost(self, error: Exception | None) -> None:
        self.over.set()
        self._on_end()

    def send(self, message: AgentMessage | MasterMessage) -> bool:
        """Queues a message, or drops it if this end is closing; False if too much waits already."""
        if not self._transport.is_closing():
            self._transport.write(_encode(message))
        return self._transport.get_write_buffer_size() <= MAX_UNREAD

    @property
    def is_unread(self) -> bool:
        """Whether the other end has yet to read something, as far as the kernel tells."""
        if self._transport.is_closing():
            return False
        try:
            number: int = self._transport.get_extra_info("socket").fileno()
            return any(fcntl.ioctl(number, termios.TIOCOUTQ, bytes(4)))
        except OSError:
            return False

    def finish(self) -> None:
        """Ends our half; the other end reads all, then closes."""
        if not self._transport.is_closing():
            self._transport.write_eof()

    def close(self) -> None:
        """Closes when all is written."""
        self._transport.close()
        asyncio.get_running_loop().call_later(FLUSH_TIMEOUT, self._transport.abort)

    def abort(self) -> None:
        self._transport.abort()


class LocalStream:
    """The agent's end, as ``Stream`` describes it."""

    def __init__(self) -> None:
        self.welcome: Welcome
        self._closing = False
        self._why = "ended the stream"
        self._behind_since: float | None = None  # when the master had not read everything; None: it had
        self._inbox: asyncio.Queue[MasterMessage | None] = asyncio.Queue()
        self._end = _End(self._inbox.put_nowait, lambda: self._inbox.put_nowait(None))

    @classmethod
    async def open(cls, channel: socket.socket, hello: Hello, timeout: float) -> LocalStream:
        """Attach over ``channel``, which belongs to the stream from now on.

        Raises MasterUnreachableError if the master does not answer within ``timeout`` seconds,
        StreamBrokenError if it ends instead, or the error of its refusal.
        """
        stream = cls()
        await asyncio.get_running_loop().create_unix_connection(lambda: stream._end, sock=channel)
        await attach(stream, stream._greet(hello), _WHO, timeout)
        return stream

    def send(self, message: AgentMessage) -> None:
        if isinstance(message, Heartbeat) and self._is_given_up():
            self._why = "reads nothing"
            self._end.abort()
        if not self._end.send(message):
            self._end.abort()

    def _is_given_up(self) -> bool:
        """Whether something is unread now, and was at each heartbeat for as long as they lie apart.

        News of the workers are heartbeats as well: several may come before a busy master has read one.
        """
        now = asyncio.get_running_loop().time()
        if not self._end.is_unread:
            self._behind_since = None
            return False
        if self._behind_since is None:
            self._behind_since = now
            return False
        return now - self._behind_since >= _NEARLY * self.welcome.heartbeat_interval

    def __aiter__(self) -> LocalStream:
        return self

    async def __anext__(self) -> MasterMessage:
        message = await self._inbox.get()
        if message is not None:
            return message
        self._inbox.put_nowait(None)  # the end stays the end
        if self._closing:
            raise StopAsyncIteration
        raise StreamBrokenError(f"{_WHO} {self._why}")

    async def close(self, timeout: float = _CLOSE_TIMEOUT) -> None:
        """See ``Stream``."""
        self._closing = True
        self._end.finish()
        try:
            if timeout > 0:
                await happens(self._end.over, timeout)
        finally:
            self._end.abort()
            await self._end.over.wait()  # at once

    async def _greet(self, hello: Hello) -> Welcome:
        self.send(hello)
        return welcome_in(await anext(self), _WHO)


class LocalServer:
    """The master's end: a server, and the only ``Session`` that it ever has."""

    id = 1
    peer = "the agent of this node"

    def __init__(self, handler: SessionHandler, channel: socket.socket) -> None:
        self._handler = handler
        self._channel = channel
        self._end = _End(self._take, self._ended)
        self._is_attached = False
        self._why = ""  # why it is closing: the first reason; "" if it is not

    async def start(self, _host: str, _port: int) -> int:
        """Serves the agent from now on. There is no port: 0."""
        await asyncio.get_running_loop().create_unix_connection(lambda: self._end, sock=self._channel)
        return 0

    async def stop(self, grace: float) -> None:
        """Closes the session after what is queued for it, after ``grace`` seconds anyway."""
        self._finish("the master stops")
        if not await happens(self._end.over, grace):
            self._end.abort()
            await self._end.over.wait()

    def send(self, message: MasterMessage) -> None:
        """See ``Session``."""
        if not self._end.send(message):
            self._finish("the agent does not read what it is sent")
            self._end.abort()

    def close(self) -> None:
        """See ``Session``."""
        self._finish("the master closed the stream")

    def _finish(self, why: str) -> None:
        if not self._why:
            self._why = why
            self._end.close()

    def _take(self, message: AgentMessage) -> None:
        if self._why:
            return
        if isinstance(message, Hello):
            self._is_attached = True
            self._handler.attached(self, replace(message, trust=Trust.MEMBER))
        else:
            self._handler.received(self, message)

    def _ended(self) -> None:
        if self._is_attached:
            self._handler.detached(self, self._why or "the stream of the agent was closed")
