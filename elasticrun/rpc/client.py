"""The agent's end of its stream to the master, through the network.

Keeping on trying, and what to do meanwhile, is the agent's business; a new attempt gets a new connection at
once.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from dataclasses import replace
from types import TracebackType

import grpc
import grpc.aio

from elasticrun.config import Endpoint, SecurityConfig
from elasticrun.core.protocol import AgentMessage, Hello, MasterMessage, Welcome
from elasticrun.errors import (
    ElasticRunError,
    EndpointTakenError,
    MasterUnreachableError,
    ProtocolError,
    UnauthenticatedError,
)
from elasticrun.rpc import codec
from elasticrun.rpc.auth import Handshake, challenge_in, fresh, same
from elasticrun.rpc.outbox import Outbox
from elasticrun.rpc.reach import reach
from elasticrun.rpc.slack import relax_soon
from elasticrun.rpc.stream import StreamBrokenError, attach, rejection, welcome_in
from elasticrun.rpc.transport import PATH, PING_INTERVAL, PING_TIMEOUT, open_channel, rejected_in

_MAX_QUEUED_BYTES = 16 * codec.MAX_MESSAGE_BYTES
_CLOSE_TIMEOUT = 2.0  # seconds

_FOREIGN_CODES = (
    grpc.StatusCode.UNIMPLEMENTED,  # also what gRPC makes of an HTTP/2 server's 404
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.PERMISSION_DENIED,
)

_NO_SECURITY = SecurityConfig()


class MasterStream:
    """An attached stream, as ``Stream`` describes it."""

    def __init__(self, endpoint: Endpoint, target: str, security: SecurityConfig) -> None:
        self.welcome: Welcome
        self._endpoint = endpoint
        self._security = security
        self._closing = False
        self._outbox = Outbox(_MAX_QUEUED_BYTES)
        # Without a bound: the agent takes every message as it comes, and a call of gRPC's cannot be
        # left waiting instead, since cancelling a read cancels the whole stream.
        self._inbox: asyncio.Queue[MasterMessage | ElasticRunError] = asyncio.Queue()
        self._channel = open_channel(target, endpoint, security.tls)
        method: grpc.aio.StreamStreamMultiCallable[bytes, bytes] = self._channel.stream_stream(PATH)
        self._call = method()
        self._reader = asyncio.create_task(self._read_all())
        self._writer = asyncio.create_task(self._write_all())

    @classmethod
    async def open(
        cls, endpoint: Endpoint, hello: Hello, timeout: float, security: SecurityConfig = _NO_SECURITY
    ) -> MasterStream:
        """Makes one attempt to attach, of at most ``timeout`` seconds, and returns once welcome.

        With a token in ``security`` only a master that proves to know it is accepted; ``hello`` comes
        without nonce and proof, which belong to one stream.

        Raises MasterUnreachableError if nothing answers there, the connection breaks on the way or a
        master is connected but does not answer Hello; EndpointTakenError if another program answers, or
        one that says nothing; UnauthenticatedError if token or certificates do not fit; TooManyError if
        the master has enough of this address, which passes; WrongJobError, WrongVersionError,
        SupersededError or ProtocolError if it refuses us; UsageError if a file of ``security`` is wrong.
        """
        clock = asyncio.get_running_loop().time
        begun = clock()
        target = await reach(endpoint, timeout, tls=security.tls is not None)
        stream = cls(endpoint, target, security)
        await attach(stream, stream._greet(hello), endpoint, timeout, spent=clock() - begun)
        relax_soon()
        return stream

    async def __aenter__(self) -> MasterStream:
        return self

    async def __aexit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        await self.close()

    def send(self, message: AgentMessage) -> None:
        if not self._outbox.put(codec.encode_agent(message)):
            self._outbox.close()
            self._call.cancel()

    def __aiter__(self) -> MasterStream:
        return self

    async def __anext__(self) -> MasterMessage:
        item = await self._inbox.get()
        if not isinstance(item, ElasticRunError):
            return item
        self._inbox.put_nowait(item)  # the end stays the end
        if self._closing:
            raise StopAsyncIteration
        raise item

    async def close(self, timeout: float = _CLOSE_TIMEOUT) -> None:
        """See ``Stream``."""
        self._closing = True
        self._outbox.close()
        try:
            # The master ends its half when it has read ours to the end.
            await asyncio.wait((self._reader, self._writer), timeout=timeout)
        finally:
            self._call.cancel()
            self._reader.cancel()
            self._writer.cancel()
            await self._channel.close()

    async def _greet(self, hello: Hello) -> Welcome:
        # Before the first write, also without a token: of a stream that is refused at once, gRPC hands on
        # the reason only to those who are not writing.
        handshake = self._handshake(await self._call.initial_metadata())
        if handshake is not None:
            hello = replace(hello, nonce=fresh())
            hello = replace(hello, proof=handshake.of_agent(hello))
        self.send(hello)
        try:
            answer = welcome_in(await anext(self), self._endpoint)
        except StreamBrokenError as error:
            raise self._unwelcome(error) from None
        if self._security.token is not None:
            self._check_proof(answer.proof, handshake.of_master(hello.nonce) if handshake else None)
        return answer

    def _check_proof(self, proof: bytes, expected: bytes | None) -> None:
        if expected is None or not same(proof, expected):
            raise UnauthenticatedError(
                f"the master at {self._endpoint} does not know this node's token: "
                "give every node the same --token-file"
            )

    def _handshake(self, metadata: Iterable[tuple[str, str | bytes]]) -> Handshake | None:
        """What proofs on this stream are made of, if this node has a token and the master speaks of one."""
        token = self._security.token
        challenge = None if token is None else challenge_in(metadata)
        if token is None or challenge is None:  # a version without proofs may still tell its version
            return None
        if not challenge:
            raise UnauthenticatedError(
                f"the master at {self._endpoint} has no token, but this node has one: "
                "give every node the same --token-file"
            )
        return Handshake(token, challenge)

    def _unwelcome(self, error: StreamBrokenError) -> ElasticRunError:
        details = str(error)
        if self._security.tls is not None and "last error" in details:  # so core says that it never connected
            from elasticrun.rpc.tls import explain

            if (explained := explain(details, self._endpoint)) is not None:
                return explained
        return MasterUnreachableError(details)

    async def _write_all(self) -> None:
        # A stream that ends makes writing fail; the reader knows why.
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            while (data := await self._outbox.get()) is not None:
                await self._call.write(data)
            await self._call.done_writing()

    async def _read_all(self) -> None:
        end: ElasticRunError = StreamBrokenError(f"the stream to {self._endpoint} was cancelled")
        try:
            while isinstance(data := await self._call.read(), bytes):
                if data == codec.GOODBYE:
                    self._outbox.close()  # the writer ends our half
                else:
                    for message in codec.decode_master(data):
                        self._inbox.put_nowait(message)
            end = StreamBrokenError(f"the master at {self._endpoint} ended the stream")
        except ProtocolError as error:
            end = ProtocolError(f"the master at {self._endpoint} sent a broken message: {error}")
        except grpc.aio.AioRpcError as error:
            end = self._failure(error)
        finally:
            self._outbox.close()
            self._inbox.put_nowait(end)

    def _failure(self, error: grpc.aio.AioRpcError) -> ElasticRunError:
        code, details = error.code(), error.details() or ""
        if (rejected := rejected_in(error.trailing_metadata())) is not None:
            return rejection(rejected)
        if code is grpc.StatusCode.RESOURCE_EXHAUSTED and "larger than" in details:
            return ProtocolError(f"the master at {self._endpoint} refuses a message: {details}")
        if code in _FOREIGN_CODES:
            return EndpointTakenError(
                f"{self._endpoint} is held by a gRPC server that is not an elasticrun master; "
                "stop that program, or give another port in --rdzv-endpoint"
            )
        if code is grpc.StatusCode.INTERNAL:  # gRPC's word for a write that failed; tells nothing else
            details = "the connection was lost"
        elif "ping timeout" in details:  # its words for a peer that answers no ping
            details = f"no answer for {PING_INTERVAL + PING_TIMEOUT:g} s"
        return StreamBrokenError(f"the stream to the master at {self._endpoint} broke: {details}")
