"""A master's handler that remembers and can be waited for, and agents good and bad to talk to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, TypeVar

import grpc.aio

from elasticrun import __version__
from elasticrun.config import Endpoint, SecurityConfig
from elasticrun.core.protocol.messages import (
    AgentPhase,
    AgentStatus,
    AttachedMessage,
    Hello,
    MasterMessage,
    NodeInfo,
    RejectCode,
    Rejected,
    Report,
    Welcome,
)
from elasticrun.core.protocol.orders import ControlReply, ControlRequest
from elasticrun.rpc import codec
from elasticrun.rpc.security.admission import Context
from elasticrun.rpc.security.auth import SIZE, Handshake
from elasticrun.rpc.security.tickets import TicketIssuer
from elasticrun.rpc.server import Limits, MasterServer, Orders, Session
from elasticrun.rpc.transport import PATH, SERVICE

DEADLINE = 60.0  # seconds; generous, since it only bounds a failure

OPEN = SecurityConfig()
TOKEN = "5f8a1c93e07b44d2a6c1f09e3b7d8842a917c05e6d3f4b1288e0c7a9d4526fb3"
LOCKED = SecurityConfig(TOKEN)
NONCE = b"n" * SIZE
KEY = b"k" * SIZE  # of the master's journal

_T = TypeVar("_T")


def run(test: Coroutine[Any, Any, _T]) -> _T:
    """Runs an async test."""
    return asyncio.run(asyncio.wait_for(test, 2 * DEADLINE))


@asynccontextmanager
async def impersonating(
    name: str, method: Callable[[object, Context], Awaitable[None]]
) -> AsyncIterator[Endpoint]:
    """A gRPC server that is no master of ours, with one of a master's methods."""
    handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.stream_stream_rpc_method_handler(method)
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {name: handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield Endpoint("127.0.0.1", port)
    finally:
        await server.stop(1.0)


def hello(job_id: str = "job", version: str = __version__, incarnation: str = "i0") -> Hello:
    info = NodeInfo("n0", incarnation, "host", "127.0.0.1", 1)
    return Hello(job_id, version, info, AgentStatus(0, AgentPhase.READY))


def welcome(said: Hello) -> Welcome:
    """What the agent is answered that says Hello for the first time."""
    issuer = TicketIssuer(KEY)
    return Welcome(1, 10.0, ticket=issuer.of(said.info), key=issuer.number)


def with_proof(data: bytes, proof: bytes) -> bytes:
    """The bytes of a Hello, with a proof of the token behind them."""
    return codec.with_proof(data, codec.HelloProof.TOKEN, proof)


def proven(shake: Handshake, said: Hello) -> bytes:
    """The bytes of a Hello, with its proof."""
    data = codec.encode_agent(replace(said, nonce=NONCE))
    return with_proof(data, shake.of_agent(data))


def report(sequence: int, incarnation: str = "i0") -> Report:
    return Report(incarnation, AgentStatus(sequence, AgentPhase.READY))


class Recorder:
    """A SessionHandler that welcomes everybody and remembers what it heard."""

    def __init__(self) -> None:
        self.sessions: list[Session] = []
        self.hellos: list[Hello] = []
        self.messages: list[AttachedMessage] = []
        self.detachments: list[tuple[int, str]] = []
        self._waiters: list[asyncio.Event] = []

    def attached(self, session: Session, hello: Hello) -> None:
        self.sessions.append(session)
        self.hellos.append(hello)
        session.send(Welcome(1, 10.0))
        self._tell()

    def received(self, session: Session, message: AttachedMessage) -> None:
        self.messages.append(message)
        self._tell()

    def detached(self, session: Session, why: str) -> None:
        self.detachments.append((session.id, why))
        self._tell()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Waits until the condition holds; looks each time something was heard."""
        event = asyncio.Event()
        self._waiters.append(event)
        while not condition():
            event.clear()
            await asyncio.wait_for(event.wait(), DEADLINE)

    def _tell(self) -> None:
        for event in self._waiters:
            event.set()


def admit(hello: Hello) -> Rejected | None:
    """What a master of job "job" answers."""
    if hello.job_id != "job":
        return Rejected(RejectCode.WRONG_JOB, f"this endpoint serves job 'job', not {hello.job_id!r}")
    if hello.version != __version__:
        return Rejected(RejectCode.WRONG_VERSION, f"the master runs {__version__}, not {hello.version}")
    if hello.info.incarnation == "old":
        return Rejected(RejectCode.SUPERSEDED, "a newer agent joined as n0")
    return None


@asynccontextmanager
async def serving(
    limits: Limits | None = None,
    security: SecurityConfig = OPEN,
    orders: Orders | None = None,
    host: str = "127.0.0.1",
    key: bytes = KEY,
) -> AsyncIterator[tuple[Recorder, Endpoint]]:
    """A master on a free port of the loopback."""
    recorder = Recorder()
    server = MasterServer(recorder, admit, limits, security, orders, key)
    port = await server.start(host, 0)
    try:
        yield recorder, Endpoint(host, port)
    finally:
        await server.stop(1.0)


@asynccontextmanager
async def raw_calls(endpoint: Endpoint) -> AsyncIterator[Callable[[], RawCall]]:
    """Opens streams on which any bytes can be sent."""
    # Without the probe the window stays small, so that not reading soon stops the master's writing.
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.http2.bdp_probe", 0)]
    async with grpc.aio.insecure_channel(str(endpoint), options=options) as channel:
        method: grpc.aio.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(PATH)
        yield lambda: RawCall(method())


class RawCall:
    """A stream that keeps no rule."""

    def __init__(self, call: grpc.aio.StreamStreamCall[bytes, bytes]) -> None:
        self.call = call

    async def say(self, payloads: Iterable[bytes]) -> list[MasterMessage]:
        """Sends the payloads and returns all answers until the master ends the stream."""
        writer = asyncio.create_task(self._write(payloads))
        answers: list[MasterMessage] = []
        try:
            while isinstance(data := await asyncio.wait_for(self.call.read(), DEADLINE), bytes):
                if data == codec.GOODBYE:
                    await writer
                    await self.call.done_writing()
                else:
                    answers += codec.decode_master(data)
        finally:
            await writer
        return answers

    async def _write(self, payloads: Iterable[bytes]) -> None:
        try:
            for payload in payloads:
                await self.call.write(payload)
        except (asyncio.InvalidStateError, grpc.aio.AioRpcError):
            pass  # the master had enough


class Obedient:
    """A ControlHandler that does nothing and says so."""

    def __init__(self) -> None:
        self.orders: list[ControlRequest] = []

    async def answer(self, request: ControlRequest) -> ControlReply:
        self.orders.append(request)
        return ControlReply(True, f"heard {request}")
