"""A load process of the master's bench: hundreds of agents, each with a connection and a stream of its own.

The real ``AgentMachine`` decides what an agent says; only its workers are fake: they start and stop at once.
Its messages go through one of two clients.

* ``lean``: as much HTTP/2 as an agent needs, on an asyncio transport, so that two cores can hold the clients
  beside the master that is measured. Like the real client, it first looks whether a master answers, on a
  connection of its own, and sends pings. With a token it proves itself, and seals and opens frames.
* ``grpc``: the client of ``elasticrun.rpc``, as agents use it. But one process with hundreds of gRPC channels
  is not like an agent: it takes several times the time that the master takes for it.

stdin has one JSON object, then a line that means "connect now"; at its end the process ends. stdout has a
JSON object for each thing that happened; times are of the machine's monotonic clock.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from dataclasses import dataclass, replace
from typing import Protocol

from elasticrun import __version__
from elasticrun.config import Endpoint, SecurityConfig
from elasticrun.core.agent.events import (
    AgentEvent,
    AgentTerms,
    Directed,
    Finish,
    GroupGone,
    HelloSent,
    LinkUp,
    Prepared,
    SignalWorkers,
    StartWorkers,
    SweepWorkers,
    Transmit,
    WorkerFinished,
)
from elasticrun.core.agent.machine import AgentMachine
from elasticrun.core.protocol.messages import AgentMessage, Heartbeat, Hello, MasterMessage, NodeInfo, Welcome
from elasticrun.rpc import codec
from elasticrun.rpc.client import MasterStream
from elasticrun.rpc.security.auth import CHALLENGE_KEY, SIZE, Handshake, Seal, fresh, keyed
from elasticrun.rpc.transport import PATH, PING_INTERVAL
from tests.rpc import raw_http2 as http2

PORT = 29_400  # where the worlds' stores would be; nobody connects
TIMEOUT = 120.0  # seconds for one attempt to attach
_SETTINGS, _PING, _ACK = 4, 6, 1
#: gRPC's own setting: the value of a -bin key in metadata may come as plain bytes, not encoded.
_TRUE_BINARY = b"\xfe\3" + (1).to_bytes(4, "big")
_WINDOW = 1 << 20  # bytes; what the master sends in one measurement is far less
_BEGIN = (
    http2.PREFACE
    + http2.frame(_SETTINGS, 0, 0, b"\0\4" + _WINDOW.to_bytes(4, "big") + _TRUE_BINARY)
    + http2.frame(8, 0, 0, _WINDOW.to_bytes(4, "big"))
)


@dataclass(frozen=True, slots=True)
class LoadConfig:
    """What a load process is told."""

    host: str
    port: int
    job_id: str
    first: int  # number of its first agent
    count: int
    client: str  # lean or grpc
    token: str | None = None


class Wire(Protocol):
    """Carries the messages of one agent."""

    def send(self, message: AgentMessage) -> None:
        """Queue a message."""


class Agent:
    """One agent: the real machine, and fake workers."""

    def __init__(self, number: int, swarm: Swarm) -> None:
        info = NodeInfo(f"node{number}", f"life{number}", f"host{number}", "127.0.0.1", 1, pid=os.getpid())
        self.machine = AgentMachine(swarm.config.job_id, __version__, info, AgentTerms())
        self.wire: Wire | None = None
        self._swarm = swarm
        self.feed(Prepared(PORT))

    def hello(self) -> Hello:
        """The first message of a stream; it is to be sent at once."""
        hello = self.machine.hello()
        self.feed(HelloSent(hello.status))
        return hello

    def feed(self, event: AgentEvent) -> None:
        """Hand an event to the machine and do what it wants."""
        for effect in self.machine.handle(event, time.monotonic()):
            match effect:
                case Transmit(message) if self.wire is not None:
                    self.wire.send(message)
                case StartWorkers(assignment):
                    self._swarm.assigned(assignment.round, assignment.group_rank, assignment.group_world_size)
                case SignalWorkers():
                    self.feed(WorkerFinished(self.machine.state.round, 0))
                case SweepWorkers(round_):
                    self.feed(GroupGone(round_, PORT))
                case Finish(_, reason):
                    tell({"broken": f"{self.machine.state.info.node} ended: {reason}"})
                case _:
                    pass

    def beat(self) -> None:
        """Say that the agent is alive."""
        if self.wire is not None:
            self.wire.send(Heartbeat(self.machine.state.info.incarnation))


class LeanWire(asyncio.Protocol):
    """A gRPC stream on a connection of its own, without the gRPC library."""

    def __init__(self, agent: Agent, token: str | None) -> None:
        self._agent = agent
        self._token = token
        self._seals: tuple[Seal, Seal] | None = None  # of our frames and of the master's, after Hello
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._message = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.write(_BEGIN + http2.call(1, PATH))

    def connection_lost(self, exc: Exception | None) -> None:
        tell({"broken": f"{self._agent.machine.state.info.node} lost its connection: {exc}"})

    def send(self, message: AgentMessage) -> None:
        data = codec.encode_agent(message)
        self._write(data if self._seals is None else self._seals[0].close(data))

    def _write(self, data: bytes) -> None:
        assert self._transport is not None
        self._transport.write(http2.message(1, data))

    def _say_hello(self, metadata: bytes) -> None:
        if self._token is None:
            self.send(self._agent.hello())
            return
        handshake, nonce = Handshake(keyed(self._token), _challenge(metadata)), fresh()
        hello = codec.encode_agent(replace(self._agent.hello(), nonce=nonce))
        self._write(codec.with_proof(hello, codec.HelloProof.TOKEN, handshake.of_agent(hello)))
        self._seals = handshake.seals(nonce)

    def ping(self) -> None:
        if self._transport is not None:
            self._transport.write(http2.frame(_PING, 0, 0, bytes(8)))

    def data_received(self, data: bytes) -> None:
        received = self._received
        received += data
        while len(received) >= 9 and len(received) >= (end := 9 + int.from_bytes(received[:3], "big")):
            self._take(received[3], received[4], bytes(received[9:end]))
            del received[:end]

    def _take(self, kind: int, flags: int, payload: bytes) -> None:
        assert self._transport is not None
        if kind == http2.DATA:
            self._message += payload
            self._read_messages()
        elif kind in (_SETTINGS, _PING) and not flags & _ACK:
            self._transport.write(http2.frame(kind, _ACK, 0, payload if kind == _PING else b""))
        elif kind == http2.HEADERS and not flags & http2.END_STREAM:  # which is when agents say Hello
            self._say_hello(payload)
            self._agent.wire = self
        elif kind in (http2.HEADERS, http2.RST_STREAM):
            tell({"broken": f"{self._agent.machine.state.info.node} was refused: {payload!r:.300}"})

    def _read_messages(self) -> None:
        held = self._message
        while len(held) >= 5 and len(held) >= (end := 5 + int.from_bytes(held[1:5], "big")):
            data = bytes(held[5:end])
            del held[:end]
            if self._seals is not None:
                data = self._seals[1].open(data)
            if data != codec.GOODBYE:
                for message in codec.decode_master(data):
                    self._agent.feed(_event(message))


def _challenge(metadata: bytes) -> bytes:
    """The value after the key: a length that includes the mark of binary values, the mark, the bytes."""
    value = metadata.partition(CHALLENGE_KEY.encode())[2]
    if value[:2] != bytes((SIZE + 1, 0)):
        raise ValueError(f"the challenge is not where it is looked for: {metadata!r:.300}")
    return value[2 : 2 + SIZE]


def _event(message: MasterMessage) -> AgentEvent:
    return LinkUp(message.epoch) if isinstance(message, Welcome) else Directed(message)


class Look(asyncio.Protocol):
    """A connection that only checks whether a master answers; see ``elasticrun/rpc/reach.py``."""

    def __init__(self) -> None:
        self.answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.write(http2.PREFACE + http2.frame(_SETTINGS, 0, 0, b""))

    def data_received(self, data: bytes) -> None:
        self._transport.abort()
        if not self.answered.done():
            self.answered.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.answered.done():
            self.answered.set_exception(ConnectionError(f"hung up on before it was answered: {exc}"))


class GrpcWire:
    """The client that agents use."""

    def __init__(self, stream: MasterStream) -> None:
        self._stream = stream

    def send(self, message: AgentMessage) -> None:
        self._stream.send(message)

    async def follow(self, agent: Agent) -> None:
        agent.wire = self
        agent.feed(LinkUp(self._stream.welcome.epoch))
        async for message in self._stream:
            agent.feed(Directed(message))


class Swarm:
    """All agents of this process."""

    def __init__(self, config: LoadConfig) -> None:
        self.config = config
        self._ranks: dict[int, list[int]] = {}
        self._agents = [Agent(config.first + index, self) for index in range(config.count)]
        self._wires: list[LeanWire] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._beats: list[asyncio.TimerHandle] = []

    def assigned(self, round_: int, rank: int, size: int) -> None:
        """An agent was told to start its workers."""
        ranks = self._ranks.setdefault(round_, [])
        ranks.append(rank)
        if len(ranks) == self.config.count:
            tell({"round": round_, "at": time.monotonic(), "size": size, "ranks": ranks})

    async def connect(self) -> None:
        """Open every stream at once."""
        tell({"began": time.monotonic()})
        follow = self._lean if self.config.client == "lean" else self._grpc
        self._tasks = [asyncio.create_task(follow(agent)) for agent in self._agents]
        for task in self._tasks:
            task.add_done_callback(_tell_failure)
        self._beat(10.0)

    async def _lean(self, agent: Agent) -> None:
        loop = asyncio.get_running_loop()
        where = (self.config.host, self.config.port)
        _, look = await loop.create_connection(Look, *where)
        await look.answered
        _, wire = await loop.create_connection(lambda: LeanWire(agent, self.config.token), *where)
        self._ping(wire)

    def _ping(self, wire: LeanWire) -> None:
        wire.ping()
        asyncio.get_running_loop().call_later(PING_INTERVAL, self._ping, wire)

    async def _grpc(self, agent: Agent) -> None:
        endpoint = Endpoint(self.config.host, self.config.port)
        security = SecurityConfig(self.config.token)
        stream = await MasterStream.open(endpoint, agent.hello(), TIMEOUT, security)
        await GrpcWire(stream).follow(agent)

    def _beat(self, interval: float) -> None:
        for agent in self._agents:
            agent.beat()
        asyncio.get_running_loop().call_later(interval, self._beat, interval)


def _tell_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        tell({"broken": repr(error)})


def tell(happened: dict[str, object]) -> None:
    """Write a line for the bench."""
    sys.stdout.write(json.dumps(happened) + "\n")
    sys.stdout.flush()


async def _main() -> None:
    loop = asyncio.get_running_loop()
    swarm = Swarm(LoadConfig(**json.loads(sys.stdin.readline())))
    tell({"ready": True})
    if not await loop.run_in_executor(None, sys.stdin.readline):
        return
    await swarm.connect()
    await loop.run_in_executor(None, sys.stdin.readline)


if __name__ == "__main__":
    import gc

    gc.disable()  # the clients' memory does not matter; their time must not count as the master's
    asyncio.run(_main())
    os._exit(0)  # the streams end with the process, as on a node that is killed
