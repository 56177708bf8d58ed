"""The master's end of the streams: one Session per agent, whatever the agents do.

A stream goes through four states, and only forward::

    silent -> attached      a valid Hello that ``admit`` accepts, within Limits.hello_timeout
    silent -> closing       anything else: a typed rejection, or nothing if nobody speaks
    attached -> closing     the agent ends its stream or breaks the protocol, or the master closes
    any -> ended            everything queued was written and the agent ended its half, or the
                            connection is gone, or the agent takes longer than Limits.flush_timeout

The handler hears ``attached`` on the first arrow, ``received`` only while attached, and ``detached``
exactly once for every ``attached``, when all is written or the stream has ended. It is called in the event
loop, never from inside one of its own calls to ``send`` or ``close``, and must not raise: an exception is
logged by gRPC and ends that one stream.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import unquote

import grpc
import grpc.aio

from elasticrun import __version__
from elasticrun.config import Endpoint
from elasticrun.core.protocol import (
    AgentMessage,
    Heartbeat,
    Hello,
    Leave,
    MasterMessage,
    RejectCode,
    Rejected,
    Report,
)
from elasticrun.errors import EndpointTakenError, ProtocolError
from elasticrun.rpc import codec
from elasticrun.rpc.listening import claim, local_addresses, taken
from elasticrun.rpc.outbox import Outbox
from elasticrun.rpc.transport import METHOD, SERVER_OPTIONS, SERVICE

_Context = grpc.aio.ServicerContext[object, bytes]  # reads bytes or EOF


@dataclass(frozen=True, slots=True)
class Limits:
    """What one agent may cost the master."""

    hello_timeout: float = 10.0  # seconds a stream may stay open without a Hello
    flush_timeout: float = 5.0  # seconds a closing stream may take to its end
    max_queued_bytes: int = 4 * codec.MAX_MESSAGE_BYTES  # what waits for an agent that does not read


class Session(Protocol):
    """One attached agent, as the master's loop sees it."""

    @property
    def id(self) -> int:
        """Unique for the life of the server; never reused."""

    @property
    def peer(self) -> str:
        """The agent's address as the master's host sees it, for messages."""

    def send(self, message: MasterMessage) -> None:
        """Queues a message; never blocks. Dropped on a closed session; one that cannot keep up is closed."""

    def close(self) -> None:
        """Ends the stream after what is queued; from now on nothing more is received."""


class SessionHandler(Protocol):
    """Who hears what the agents say."""

    def attached(self, session: Session, hello: Hello) -> None:
        """An agent came and was admitted; it waits for Welcome."""

    def received(self, session: Session, message: Report | Heartbeat | Leave) -> None:
        """A valid message of the session's incarnation, in the order sent."""

    def detached(self, session: Session, why: str) -> None:
        """The session is over; exactly once for each ``attached``."""


Admit = Callable[[Hello], "Rejected | None"]


class MasterServer:
    """Listens at an endpoint and keeps one session per agent."""

    def __init__(self, handler: SessionHandler, admit: Admit, limits: Limits | None = None) -> None:
        self._handler = handler
        self._admit = admit
        self._limits = limits or Limits()
        self._ids = itertools.count(1)
        self._streams: set[_Stream] = set()
        self._server: grpc.aio.Server | None = None
        self._claims: list[socket.socket] = []

    async def start(self, host: str, port: int) -> int:
        """Listens on every address of this host that ``host`` names; returns the port, a free one for 0.

        Raises EndpointTakenError if the port is in use, and OSError if ``host`` names no address of this
        host or the port may not be bound.
        """
        server = grpc.aio.server(options=SERVER_OPTIONS)
        server.add_generic_rpc_handlers((_generic_handler(self._serve),))
        self._server = server
        bound = port
        try:
            for address in await local_addresses(Endpoint(host, port)):
                bound = self._listen(server, Endpoint(address, bound))
        except (EndpointTakenError, OSError):
            await self.stop(0.0)
            raise
        await server.start()
        return bound

    async def stop(self, grace: float) -> None:
        """Stops listening and closes every session after what is queued for it.

        Streams that take longer than ``grace`` seconds are cut; gRPC then writes a line about it on the
        agent's stderr, so 0 is for a server without sessions.
        """
        for stream in self._streams:
            stream.finish("the master stops")
        if self._server is not None:
            await self._server.stop(grace)
        while self._claims:
            self._claims.pop().close()

    def _listen(self, server: grpc.aio.Server, endpoint: Endpoint) -> int:
        if endpoint.port:
            self._claims.append(claim(endpoint))
        try:
            return server.add_insecure_port(str(endpoint))
        except RuntimeError:  # a foreign program was faster than we after our look at the port
            raise taken(endpoint) from None

    async def _serve(self, _requests: object, context: _Context) -> None:
        stream = _Stream(next(self._ids), context, self._handler, self._admit, self._limits)
        self._streams.add(stream)
        try:
            await stream.run()
        finally:
            self._streams.discard(stream)


class _Stream:
    """A Session and the two tasks behind it: ``run`` writes, ``_read_all`` reads."""

    def __init__(
        self, number: int, context: _Context, handler: SessionHandler, admit: Admit, limits: Limits
    ) -> None:
        self.id = number
        self.peer = unquote(context.peer().partition(":")[2])  # gRPC says ipv6:%5B::1%5D:40000
        self._context = context
        self._handler = handler
        self._admit = admit
        self._limits = limits
        self._outbox = Outbox(limits.max_queued_bytes)
        self._hello: Hello | None = None
        self._why = ""
        self._given_up = False
        self._task: asyncio.Task[None] | None = None
        self._deadline: asyncio.TimerHandle | None = None

    # What the handler sees

    def send(self, message: MasterMessage) -> None:
        if not self._outbox.put(codec.encode_master(message)):
            self.finish("the agent does not read what it is sent")
            self._abort()

    def close(self) -> None:
        self.finish("the master closed the stream")

    # What the server sees

    async def run(self) -> None:
        """Serves the stream to its end."""
        self._task = asyncio.current_task()
        # By itself, since gRPC cannot end a stream whose first write, metadata included, was cancelled.
        await self._context.send_initial_metadata(())
        self._arm(self._limits.hello_timeout, self._give_up_on_hello)
        reader = asyncio.create_task(self._read_all())
        try:
            await self._write_all(reader)
        finally:
            self.finish("the connection to the agent broke")
            self._arm(0.0, None)
            try:
                await _cancelled(reader)
            finally:
                self._detach()
        if self._given_up:
            await self._context.abort(grpc.StatusCode.ABORTED, self._why)

    async def _write_all(self, reader: asyncio.Task[None]) -> None:
        try:
            while (data := await self._outbox.get()) is not None:
                await self._context.write(data)
            self._detach()
            await self._context.write(codec.GOODBYE)
            await asyncio.wait((reader,))
        except asyncio.CancelledError:
            if not self._given_up:  # then it is gRPC that cancels: the connection is gone
                raise

    def _detach(self) -> None:
        if self._hello is not None:
            self._hello = None
            self._handler.detached(self, self._why)

    def finish(self, why: str) -> None:
        """Stops listening and ends the stream once what is queued is written; the first reason counts."""
        if self._outbox.closed:
            return
        self._why = why
        self._outbox.close()
        self._arm(self._limits.flush_timeout, self._abort)

    async def _read_all(self) -> None:
        """Takes messages until the agent ends its half, or the stream is closing."""
        try:
            while isinstance(data := await self._context.read(), bytes):
                self._take(data)
            self.finish("the agent's stream ended")
        finally:
            # An exception here is the handler's or gRPC's; it surfaces in run, which this wakes up.
            self.finish("the connection to the agent broke")

    def _take(self, data: bytes) -> None:
        if self._outbox.closed:
            return
        try:
            message = codec.decode_agent(data)
        except ProtocolError as error:
            self._reject(self._refusal(data, error))
            return
        if self._hello is None:
            self._attach(message)
        elif isinstance(message, Hello):
            self._reject(Rejected(RejectCode.OUT_OF_ORDER, "a stream carries only one Hello"))
        elif message.incarnation != self._hello.info.incarnation:
            text = f"the stream is of incarnation {self._hello.info.incarnation}, got {message.incarnation}"
            self._reject(Rejected(RejectCode.OUT_OF_ORDER, text))
        else:
            self._handler.received(self, message)

    def _attach(self, message: AgentMessage) -> None:
        if not isinstance(message, Hello):
            text = f"the first message must be Hello, got {type(message).__name__}"
            self._reject(Rejected(RejectCode.OUT_OF_ORDER, text))
        elif (rejected := self._admit(message)) is not None:
            self._reject(rejected)
        else:
            self._arm(0.0, None)
            self._hello = message
            self._handler.attached(self, message)

    def _refusal(self, data: bytes, error: ProtocolError) -> Rejected:
        if len(data) > codec.MAX_MESSAGE_BYTES:
            return Rejected(RejectCode.OVERSIZED, str(error))
        version = codec.version_in(data)
        if version is not None and version != __version__:
            text = f"the master runs elasticrun {__version__}, the agent {version}"
            return Rejected(RejectCode.WRONG_VERSION, text)
        return Rejected(RejectCode.MALFORMED, str(error))

    def _reject(self, rejected: Rejected) -> None:
        self.send(rejected)
        self.finish(f"rejected: {rejected.message}")

    def _give_up_on_hello(self) -> None:
        text = f"no Hello within {self._limits.hello_timeout:g} s"
        self._reject(Rejected(RejectCode.OUT_OF_ORDER, text))

    def _abort(self) -> None:
        """Ends the stream without waiting any longer for the agent to read."""
        if self._task is not None:
            self._given_up = True
            self._task.cancel()

    def _arm(self, seconds: float, callback: Callable[[], None] | None) -> None:
        """Sets the stream's one deadline, replacing the last; None: no deadline."""
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = callback and asyncio.get_running_loop().call_later(seconds, callback)


def _generic_handler(serve: Callable[[object, _Context], Awaitable[None]]) -> grpc.GenericRpcHandler:
    """Routes the one method to ``serve``, with payloads as plain bytes."""
    method: grpc.RpcMethodHandler[bytes, bytes] = grpc.stream_stream_rpc_method_handler(serve)
    return grpc.method_handlers_generic_handler(SERVICE, {METHOD: method})


async def _cancelled(task: asyncio.Task[None]) -> None:
    """Waits until the cancelled task has ended; raises what it had raised by itself."""
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
