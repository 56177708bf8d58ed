"""The agent's end of its stream to the master, through the network.

Retries are the agent's business; each attempt gets a new connection at once.

Whose word counts. With a token a master proves itself by the seal of each frame (``auth.py``). Without one,
the master that welcomed this agent before proves itself by the ticket (``tickets.py``). A refusal without a
proof is an ``UnprovenError``, after which we go on trying. An agent that was never welcomed has nothing to
lose: it believes a refusal that a master sends before it can prove anything.

A master without our ticket may also be the honest one that lost its journal. So it is followed, unless the
caller demands a proof: that is an agent whose workers run, and can go on without a master. The masters of
several listed hosts can prove themselves for one another.
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
from elasticrun.core.protocol.messages import AgentMessage, Hello, MasterMessage, Rejected, Welcome
from elasticrun.errors import (
    ElasticRunError,
    EndpointTakenError,
    MasterUnreachableError,
    ProtocolError,
    UnauthenticatedError,
)
from elasticrun.rpc import codec
from elasticrun.rpc.outbox import Outbox
from elasticrun.rpc.reach import reach
from elasticrun.rpc.security.auth import ForgedError, Handshake, Seal, challenge_in, fresh, keyed, same
from elasticrun.rpc.security.tickets import SAID_TO_STRANGERS, TicketProof, Tickets
from elasticrun.rpc.stream import StreamBrokenError, attach, rejection, welcome_in
from elasticrun.rpc.timer_slack import relax_soon
from elasticrun.rpc.transport import PATH, PING_INTERVAL, PING_TIMEOUT, open_channel, rejected_in

_MAX_QUEUED_BYTES = 16 * codec.MAX_MESSAGE_BYTES
_CLOSE_TIMEOUT = 2.0  # seconds

_FOREIGN_CODES = (
    grpc.StatusCode.UNIMPLEMENTED,  # also what gRPC makes of an HTTP/2 server's 404
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.PERMISSION_DENIED,
)

_NO_SECURITY = SecurityConfig()


class UnprovenError(MasterUnreachableError):
    """The answer does not prove to be our master's, so it counts as none."""


class MasterStream:
    """An attached stream, as ``Stream`` describes it."""

    def __init__(self, endpoint: Endpoint, target: str, security: SecurityConfig, tickets: Tickets) -> None:
        self.welcome: Welcome
        self._endpoint = endpoint
        self._security = security
        self._tickets = tickets
        self._to_master: Seal | None = None  # both from Hello on, if there is a token
        self._from_master: Seal | None = None
        self._has_heard = False  # a frame of the master's
        self._is_sealed = False  # the master's first frame was, so it knows the token
        self._proof: TicketProof | None = None
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
        cls,
        endpoint: Endpoint,
        hello: Hello,
        timeout: float,
        security: SecurityConfig = _NO_SECURITY,
        tickets: Tickets | None = None,
        needs_proof: bool = False,
    ) -> MasterStream:
        """Makes one attempt to attach, of at most ``timeout`` seconds, and returns once welcome.

        With a token in ``security`` only a master that proves to know it is accepted; ``hello`` comes
        without nonce and proof, which belong to one stream. ``tickets`` are those from earlier streams of
        the same incarnation; with ``needs_proof`` the master must know one of them, or the token.

        Raises MasterUnreachableError if nothing answers there, the connection breaks on the way or a
        master is connected but does not answer Hello; EndpointTakenError if another program answers, or
        one that says nothing; UnauthenticatedError if token or certificates do not fit; TooManyError if
        the master limits this address, which passes; WrongJobError, WrongVersionError,
        NameInUseError, SupersededError or ProtocolError if it refuses us; UnprovenError if it does not prove
        that it may; UsageError if a file of ``security`` is wrong.
        """
        clock = asyncio.get_running_loop().time
        begun = clock()
        target = await reach(endpoint, timeout, tls=security.tls is not None)
        stream = cls(endpoint, target, security, Tickets() if tickets is None else tickets)
        await attach(stream, stream._greet(hello, needs_proof), endpoint, timeout, spent=clock() - begun)
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
            # gRPC may turn a cancel of its read into an end, so the reader can need another turn of the loop.
            await asyncio.wait((self._reader, self._writer), timeout=timeout)

    async def _greet(self, hello: Hello, needs_proof: bool) -> Welcome:
        # Before the first write, also without a token: gRPC passes on the reason of an early refusal only
        # while we are not writing.
        metadata = tuple(await self._call.initial_metadata())
        self._say_hello(replace(hello, nonce=fresh()), metadata, needs_proof)
        try:
            answer = await anext(self)
        except StreamBrokenError as error:
            raise self._unwelcome(error) from None
        return self._judge(answer, needs_proof)

    def _say_hello(
        self, hello: Hello, metadata: Iterable[tuple[str, str | bytes]], needs_proof: bool
    ) -> None:
        handshake = self._handshake(metadata)
        data = codec.encode_agent(hello)
        is_for_workers = needs_proof and handshake is None  # else it is the token that counts
        self._proof = self._tickets.proof(metadata, hello.nonce, is_for_workers)
        if self._proof is not None:
            data = codec.with_proof(data, codec.HelloProof.RETURNING, self._proof.returning(data))
        if handshake is not None:
            data = codec.with_proof(data, codec.HelloProof.TOKEN, handshake.of_agent(data))
            self._to_master, self._from_master = handshake.seals(hello.nonce)
        self._outbox.put(data)

    def _judge(self, answer: MasterMessage, needs_proof: bool) -> Welcome:
        """The answer to Hello, if it is a welcome with the needed proof; else raises."""
        if isinstance(answer, Rejected) and not self._is_proven(answer):
            raise self._refused_by_somebody(answer)
        welcome = welcome_in(answer, self._endpoint)
        if self._security.token is not None and not self._is_sealed:
            raise UnauthenticatedError(
                f"the master at {self._endpoint} does not know this node's token: "
                "give every node the same --token-file"
            )
        proof = self._proof
        is_known = self._is_sealed or (proof is not None and same(welcome.returning, proof.welcome()))
        if needs_proof and self._tickets and not is_known:
            raise UnprovenError(
                f"the master at {self._endpoint} cannot prove that it is the one that welcomed this node"
                " before, so the workers go on without it; if that one has lost its state, restart the job"
            )
        self._tickets.keep(welcome.key, welcome.ticket)
        return welcome

    def _is_proven(self, rejected: Rejected) -> bool:
        if self._is_sealed or self._security.token is not None:
            return self._is_sealed
        return self._proof is not None and same(rejected.proof, self._proof.rejected(rejected))

    def _refused_by_somebody(self, rejected: Rejected) -> ElasticRunError:
        """The error for a refusal without a proof; see the module."""
        is_early = self._security.token is None or rejected.code in SAID_TO_STRANGERS
        if is_early and not self._tickets:
            return rejection(rejected)
        return UnprovenError(
            f"{self._endpoint} refuses this node, but does not prove to be this job's master:"
            f" {rejected.message}"
        )

    def _handshake(self, metadata: Iterable[tuple[str, str | bytes]]) -> Handshake | None:
        """The maker of proofs, if this node has a token and the master sent a challenge; else None."""
        token = self._security.token
        challenge = None if token is None else challenge_in(metadata)
        if token is None or challenge is None:  # a version without proofs may still tell its version
            return None
        if not challenge:
            raise UnauthenticatedError(
                f"the master at {self._endpoint} has no token, but this node has one: "
                "give every node the same --token-file"
            )
        return Handshake(keyed(token), challenge)

    def _unwelcome(self, error: StreamBrokenError) -> ElasticRunError:
        details = str(error)
        if self._security.tls is not None and "last error" in details:  # core's words if it never connected
            from elasticrun.rpc.security.tls import explain

            if (explained := explain(details, self._endpoint)) is not None:
                return explained
        return MasterUnreachableError(details)

    async def _write_all(self) -> None:
        # A stream that ends makes writing fail; the reader knows why.
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            seal = None
            while (data := await self._outbox.get()) is not None:
                await self._call.write(data if seal is None else seal.close(data))
                seal = self._to_master  # after Hello
            await self._call.done_writing()

    async def _read_all(self) -> None:
        end: ElasticRunError = StreamBrokenError(f"the stream to {self._endpoint} was cancelled")
        try:
            while isinstance(frame := await self._call.read(), bytes):
                data = self._message(frame)
                if data == codec.GOODBYE:
                    self._outbox.close()  # the writer ends our half
                else:
                    for message in codec.decode_master(data):
                        self._inbox.put_nowait(message)
            end = StreamBrokenError(f"the master at {self._endpoint} ended the stream")
        except ForgedError:
            what = f"what the master at {self._endpoint} sent failed its token check"
            end = StreamBrokenError(f"{what}: it was altered on its way")
        except ProtocolError as error:
            end = ProtocolError(f"the master at {self._endpoint} sent a broken message: {error}")
        except grpc.aio.AioRpcError as error:
            end = self._failure(error)
        finally:
            self._outbox.close()
            self._inbox.put_nowait(end)

    def _message(self, frame: bytes) -> bytes:
        """The message in a frame. The first one may be unsealed, which ``_judge`` decides about."""
        if self._from_master is None:
            return frame
        if self._has_heard and not self._is_sealed:
            raise ForgedError  # a later seal must not pass for one of the first frame
        is_first, self._has_heard = not self._has_heard, True
        try:
            data = self._from_master.open(frame)
        except ForgedError:
            if is_first:
                return frame
            raise
        self._is_sealed = True
        return data

    def _failure(self, error: grpc.aio.AioRpcError) -> ElasticRunError:
        code, details = error.code(), error.details() or ""
        if (rejected := rejected_in(error.trailing_metadata())) is not None:
            return self._refused_by_somebody(rejected)
        if code is grpc.StatusCode.RESOURCE_EXHAUSTED and "larger than" in details:
            return ProtocolError(f"the master at {self._endpoint} refuses a message: {details}")
        if code in _FOREIGN_CODES:
            return EndpointTakenError(
                f"{self._endpoint} is held by a gRPC server that is not an elasticrun master; "
                "stop that program, or give another port in --rdzv-endpoint"
            )
        if code is grpc.StatusCode.INTERNAL:  # gRPC's word for a failed write; says no more
            details = "the connection was lost"
        elif "ping timeout" in details:  # its words for a peer that answers no ping
            details = f"no answer for {PING_INTERVAL + PING_TIMEOUT:g} s"
        return StreamBrokenError(f"the stream to the master at {self._endpoint} broke: {details}")
