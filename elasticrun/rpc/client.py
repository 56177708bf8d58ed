"""The agent's end of its stream to the master.

One MasterStream is one attempt: it is opened, attached and, whatever ends it, never used again. Keeping on
trying, and what to do meanwhile, is the agent's business; a new attempt gets a new connection at once.
"""

from __future__ import annotations

import asyncio
import contextlib
from types import TracebackType

import grpc
import grpc.aio

from elasticrun.config import Endpoint
from elasticrun.core.protocol import AgentMessage, Hello, MasterMessage, RejectCode, Rejected, Welcome
from elasticrun.errors import (
    DrainedError,
    ElasticRunError,
    EndpointTakenError,
    ExcludedError,
    ExitCode,
    MasterUnreachableError,
    ProtocolError,
    SupersededError,
    TooManyError,
    UnauthenticatedError,
    WrongJobError,
    WrongVersionError,
)
from elasticrun.rpc import codec
from elasticrun.rpc.outbox import Outbox
from elasticrun.rpc.reach import reach
from elasticrun.rpc.transport import CLIENT_OPTIONS, PATH

_MAX_QUEUED_BYTES = 16 * codec.MAX_MESSAGE_BYTES
_CLOSE_TIMEOUT = 2.0  # seconds

_FOREIGN_CODES = (
    grpc.StatusCode.UNIMPLEMENTED,  # also what gRPC makes of an HTTP/2 server's 404
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.PERMISSION_DENIED,
)

_REJECTIONS: dict[RejectCode, type[ElasticRunError]] = {
    RejectCode.WRONG_JOB: WrongJobError,
    RejectCode.WRONG_VERSION: WrongVersionError,
    RejectCode.SUPERSEDED: SupersededError,
    RejectCode.EXCLUDED: ExcludedError,
    RejectCode.DRAINED: DrainedError,
    RejectCode.UNAUTHENTICATED: UnauthenticatedError,
    RejectCode.TOO_MANY: TooManyError,
    RejectCode.MALFORMED: ProtocolError,
    RejectCode.OUT_OF_ORDER: ProtocolError,
    RejectCode.OVERSIZED: ProtocolError,
}


class StreamBrokenError(ElasticRunError):
    """The stream to the master ended without our doing; a new one may be opened."""

    exit_code = ExitCode.MASTER_LOST


def rejection(rejected: Rejected) -> ElasticRunError:
    """The error that a rejection stands for."""
    return _REJECTIONS[rejected.code](rejected.message)


class MasterStream:
    """An attached stream; iterate over it for the master's messages.

    The iteration yields every message after Welcome, a Rejected included, ends after ``close``, and raises
    StreamBrokenError when the stream ends otherwise or ProtocolError when a message cannot be decoded.
    It may be cancelled and taken up again without losing a message.
    """

    def __init__(self, endpoint: Endpoint, target: str) -> None:
        self.welcome: Welcome
        self._endpoint = endpoint
        self._closing = False
        self._outbox = Outbox(_MAX_QUEUED_BYTES)
        # Without a bound: the agent takes every message as it comes, and a call of gRPC's cannot be
        # left waiting instead, since cancelling a read cancels the whole stream.
        self._inbox: asyncio.Queue[MasterMessage | ElasticRunError] = asyncio.Queue()
        self._channel = grpc.aio.insecure_channel(target, options=CLIENT_OPTIONS)
        method: grpc.aio.StreamStreamMultiCallable[bytes, bytes] = self._channel.stream_stream(PATH)
        self._call = method()
        self._reader = asyncio.create_task(self._read_all())
        self._writer = asyncio.create_task(self._write_all())

    @classmethod
    async def open(cls, endpoint: Endpoint, hello: Hello, timeout: float) -> MasterStream:
        """Makes one attempt to attach, of at most ``timeout`` seconds, and returns once welcome.

        Raises MasterUnreachableError if nothing answers there, the connection breaks on the way or a
        master is connected but does not answer Hello; EndpointTakenError if another program answers, or
        one that says nothing; WrongJobError, WrongVersionError, SupersededError or ProtocolError if the
        master refuses us.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        target = await reach(endpoint, timeout)
        stream = cls(endpoint, target)
        try:
            left = max(0.0, deadline - loop.time())
            stream.welcome = await asyncio.wait_for(stream._greet(hello), left)
        except asyncio.TimeoutError:
            await stream.close(0.0)
            raise MasterUnreachableError(f"{endpoint} did not answer Hello within {timeout:.3g} s") from None
        except BaseException:
            await stream.close(0.0)
            raise
        return stream

    async def __aenter__(self) -> MasterStream:
        return self

    async def __aexit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        await self.close()

    def send(self, message: AgentMessage) -> None:
        """Queues a message; never blocks. On a stream that has ended it is dropped; the iteration tells."""
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
        """Ends the stream once the master has read all that was sent, after ``timeout`` seconds anyway."""
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
        self.send(hello)
        try:
            answer = await anext(self)
        except StreamBrokenError as error:
            raise MasterUnreachableError(str(error)) from None
        if isinstance(answer, Rejected):
            raise rejection(answer)
        if not isinstance(answer, Welcome):
            raise ProtocolError(f"{self._endpoint} answered Hello with {type(answer).__name__}")
        return answer

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
                    self._inbox.put_nowait(codec.decode_master(data))
            end = StreamBrokenError(f"the master at {self._endpoint} ended the stream")
        except ProtocolError as error:
            end = ProtocolError(f"the master at {self._endpoint} sent a broken message: {error}")
        except grpc.aio.AioRpcError as error:
            end = self._failure(error)
        finally:
            self._outbox.close()
            self._inbox.put_nowait(end)

    def _failure(self, error: grpc.aio.AioRpcError) -> ElasticRunError:
        code, details = error.code(), error.details()
        if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
            return ProtocolError(f"the master at {self._endpoint} refuses a message: {details}")
        if code in _FOREIGN_CODES:
            return EndpointTakenError(
                f"{self._endpoint} is held by a gRPC server that is not an elasticrun master; "
                "stop that program, or give another port in --rdzv-endpoint"
            )
        if code is grpc.StatusCode.INTERNAL:  # gRPC's word for a write that failed; tells nothing else
            details = "the connection was lost"
        return StreamBrokenError(f"the stream to the master at {self._endpoint} broke: {details}")
